"""`posterity what-if`: what dropping or relabelling rows would do, estimated or measured."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from posterity.cells import counted
from posterity.cli._output import UNCORRECTED, Json, dump, say, successor, then
from posterity.errors import InvalidInput

if TYPE_CHECKING:
    from posterity.runs.what_if import RunWhatIf


def what_if(
    run: Annotated[Path, typer.Argument(help="Folder of the run; it is not changed.")],
    decisions: Annotated[
        Path | None, typer.Option(help="CSV with the columns id, decision (keep, drop, relabel) and label.")
    ] = None,
    drop: Annotated[list[int] | None, typer.Option(help="Id of a row to drop; repeat for each.")] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Also train with and without the change, and show the difference.")
    ] = False,
    repeats: Annotated[int, typer.Option(help="Pairs of trainings of --measure, for its interval.")] = 3,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    as_json: Json = False,
) -> None:
    """Estimate how dropping or relabelling rows would change predictions of held-out rows; the run is not changed.

    The estimate comes from the posterior. --measure trains on from the weights of the run, with and without the change.
    """
    from posterity.runs import RunFolder
    from posterity.runs.decisions import RowDecisions
    from posterity.runs.what_if import what_if_run

    if decisions is None and not drop:
        raise InvalidInput("what-if: expected rows to drop (--drop) or a file of decisions (--decisions), got neither")
    found = RowDecisions((), (), {}) if decisions is None else RowDecisions.read(decisions)
    wanted = RowDecisions(found.kept, tuple(dict.fromkeys((*found.dropped, *(drop or ())))), found.relabelled)
    opened = RunFolder.open(run)
    answer = what_if_run(opened, wanted, measured=measure, repeats=repeats, seed=seed)
    if as_json:
        about = {"run": str(run), "dropped": len(wanted.dropped), "relabelled": len(wanted.relabelled)}
        dump(about | _content(answer))
        return
    say(f"{counted(len(wanted.dropped), 'row')} dropped, {len(wanted.relabelled)} relabelled; {_where(answer)}:")
    say(f"estimated: {_estimate(answer)}")
    if answer.measured is not None:
        say(f"measured:  {answer.measured}")
    elif opened.forgets:
        say("a part of the old rows was forgotten; the estimate counts each of them in full")
    elif answer.outcome.reliability.warning:
        say("measure it: the same command with --measure")
    if answer.held_out:
        say(UNCORRECTED)
    if decisions is not None and not drop:
        then("adapt", run, "--decisions", decisions, "--out", successor(run))


def _where(answer: RunWhatIf) -> str:
    rows = "held-out rows" if answer.held_out else "changed rows"
    return f"effect on {len(answer.outcome.ids)} {rows}"


def _estimate(answer: RunWhatIf) -> str:
    """Sizes where they can be trusted, otherwise a direction at most."""
    change, warning = answer.outcome.loss_change, answer.outcome.reliability.warning
    if not warning:
        return f"mean loss {answer.outcome.loss_before.mean().item():.4g} {change:+.2g}"
    if not answer.outcome.reliability.ranks:
        return f"unknown: {warning}"
    return f"mean loss {'falls' if change < 0 else 'rises'}; {warning}"


def _content(answer: RunWhatIf) -> dict[str, object]:
    sizes = not answer.outcome.reliability.warning
    change = answer.outcome.loss_change
    estimate = {
        "loss": answer.outcome.loss_before.mean().item(),
        "change": change if sizes else None,
        "direction": (change > 0) - (change < 0) if answer.outcome.reliability.ranks else None,
        "warning": answer.outcome.reliability.warning,
    }
    measured = None if answer.measured is None else asdict(answer.measured)
    return {"held_out": answer.held_out, "estimate": estimate, "measured": measured}
