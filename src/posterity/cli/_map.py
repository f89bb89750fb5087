"""`posterity map`: which rows the model is made of, and where labels look wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from posterity.cli._output import Json, dump, say, show_table

_FIGURES = ("id", "label", "suspected_label", "loo_nll", "error", "leverage", "category")


def memory_map(
    run: Annotated[Path, typer.Argument(help="Folder of the run.")],
    top: Annotated[int, typer.Option(help="How many rows to show.")] = 20,
    by: Annotated[str | None, typer.Option(help="Column to rank by; by default what finds wrong labels best.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the whole table, .csv or .parquet.")] = None,
    decisions: Annotated[
        Path | None, typer.Option(help="Write the rows shown as decisions to go through, for `posterity adapt`.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Map the training rows by error and leverage; the most suspicious ones are shown, all are kept in the run."""
    from posterity.runs import RunFolder
    from posterity.runs.decisions import proposal
    from posterity.runs.mapping import map_run, suspects
    from posterity.runs.tables import write_table

    opened, found = map_run(RunFolder.open(run))
    worst = suspects(opened, found, min(top, len(found)), by)
    if out is not None:
        write_table(opened.memory, out)
    if decisions is not None:
        write_table(proposal(worst), decisions)
    counts = opened.memory["category"].value_counts().to_dict()
    if as_json:
        about = {"run": str(run), "rows": len(found), "categories": counts, "ranking": by or found.ranking}
        dump(about | {"reliability": str(found.reliability), "top": worst.to_dict("records")})
        return
    say(f"{len(found)} training rows: " + ", ".join(f"{count} {name}" for name, count in counts.items()))
    say(f"most suspicious by {by or found.ranking} (changes: {found.reliability.warning or 'sizes and rankings'}):")
    shown = [name for name in _FIGURES if name in worst]
    show_table(worst[[*shown, *[name for name in worst.columns if name not in set(found.table) | set(shown)]]])
    if decisions is not None:
        say(f"decisions to go through (keep, drop or relabel): {decisions}")
        say(f"then: posterity adapt {run} --decisions {decisions} --out {run}-2")
