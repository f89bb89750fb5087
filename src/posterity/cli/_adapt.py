"""`posterity adapt`: rows added, dropped or relabelled, without training again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from posterity.cells import counted
from posterity.cli._output import (
    UNCORRECTED,
    Json,
    Overwrite,
    dump,
    figures,
    meanings,
    notes,
    say,
    show_table,
    successor,
)
from posterity.errors import InvalidInput, expected


def adapt(
    run: Annotated[Path, typer.Argument(help="Folder of the run; it is not changed.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder of the adapted run; by default the run's name and a number.")
    ] = None,
    add: Annotated[Path | None, typer.Option(help="New rows, in the format of the training data.")] = None,
    decisions: Annotated[
        Path | None, typer.Option(help="CSV with the columns id, decision (keep, drop, relabel) and label.")
    ] = None,
    embeddings: Annotated[
        Path | None, typer.Option(help="An npz with a vector, or a picture, for each new row of a table.")
    ] = None,
    memory: Annotated[int | None, typer.Option(help="Training rows to remember; default: one in ten.")] = None,
    forget: Annotated[
        str, typer.Option(help="Share of the past to forget, 0 to 1, or auto: what explains the new rows best.")
    ] = "0",
    method: Annotated[
        str | None, typer.Option(help="For networks: warm_start (the default), kprior, ewc or combined.")
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(help="For networks: passes over the data; default: chosen from the size of the change."),
    ] = None,
    lr: Annotated[float | None, typer.Option(help="For networks: learning rate; default: 3e-3 or less.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Change what a run was trained on, without training it from the beginning.

    Networks are trained on the corrected data from the weights of the run. Linear models are solved by Newton's method,
    which equals retraining if the run was at its own optimum and its prior is not centred at its weights.
    """
    if add is None and decisions is None:
        raise InvalidInput("adapt: expected new rows (--add) or decisions about old ones (--decisions), got neither")
    from posterity.runs import RunFolder
    from posterity.runs.adapting import adapt_run
    from posterity.runs.decisions import RowDecisions

    opened, out = RunFolder.open(run), out or Path(successor(run))
    decided = None if decisions is None else RowDecisions.read(decisions)
    changed, report, unusual = adapt_run(
        opened,
        out,
        add=add,
        decisions=decided,
        embeddings=embeddings,
        memory=memory,
        overwrite=overwrite,
        forget=_share(forget),
        method=method,
        epochs=epochs,
        lr=lr,
        seed=seed,
    )
    if as_json:
        about = {"run": str(out), "parent": str(run), "metrics": changed.metrics, "before": opened.metrics}
        dump(about | {"adaptation": changed.content["adaptation"], "notes": unusual})
        return
    notes(unusual)
    gone = 0 if decided is None else len(decided.dropped)
    new = 0 if decided is None else len(decided.relabelled)
    total = f"they count as {changed.posterior.n} rows" if changed.forgets else f"{changed.posterior.n} rows now"
    say(f"{counted(len(report.added) - new, 'row')} added, {gone} dropped, {new} relabelled; {total}")
    how = "exactly, if the old run was at its optimum" if report.exact else "approximately, retraining would differ"
    say(f"adapted {how}: {report.steps} steps in {report.seconds:.1f} s ({report.why})")
    show_table(report.table.rename_axis("model").reset_index())
    for line in report.legend:
        say(f"  {line}")
    if new:
        say("  relabelled rows count as removed with the old label and as added with the new one")
    if changed.metrics:
        say(f"on held-out rows before: {figures(opened.metrics)}")
        say(f"on held-out rows now:    {figures(changed.metrics)}")
        if decided is not None:
            say(f"  {UNCORRECTED}")
        for line in meanings(changed.metrics):
            say(f"  {line}")
    say(f"run: {out}")


def _share(given: str) -> float | str:
    """A number, or "auto"."""
    try:
        return given if given == "auto" else float(given)
    except ValueError:
        raise expected("forget", "a number in [0, 1] or auto", given) from None
