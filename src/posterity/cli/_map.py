"""`posterity map`: which rows the model is made of, and where labels look wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posterity.cli._output import Json, dump, say, show_table, successor, then
from posterity.errors import expected, require_whole

if TYPE_CHECKING:
    import pandas as pd

    from posterity.memory import MemoryMap

_FIGURES = ("id", "label", "suspected_label", "label_error", "loo_nll", "error", "leverage", "category")


def memory_map(
    run: Annotated[Path, typer.Argument(help="Folder of the run.")],
    top: Annotated[int, typer.Option(help="How many rows to show.")] = 20,
    by: Annotated[str | None, typer.Option(help="Column to rank by; by default what finds wrong labels best.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the whole table, .csv or .parquet.")] = None,
    decisions: Annotated[
        Path | None,
        typer.Option(help="Write the rows shown to a new file of decisions to go through, for `posterity adapt`."),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write the map as one page that needs no server.")] = None,
    in_browser: Annotated[bool, typer.Option("--serve", help="Show the map in the browser, until Ctrl-C.")] = False,
    beside: Annotated[
        Path | None, typer.Option(help="A second run to compare in the page; by default the one adapted from.")
    ] = None,
    port: Annotated[int, typer.Option(help="Port of --serve; 0 takes a free one.")] = 0,
    open_browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page of --serve.")] = True,
    as_json: Json = False,
) -> None:
    """Rank the training rows by how likely their labels are wrong; print the first, and keep all in the run."""
    from posterity.runs import RunFolder
    from posterity.runs.decisions import proposal
    from posterity.runs.mapping import map_run, readable, suspects
    from posterity.runs.tables import check_name, write_table

    require_whole("top", top)
    if decisions is not None and decisions.exists():
        raise expected("decisions", "a new file (an old one may hold decisions)", str(decisions))
    for option, path in (("out", out), ("decisions", decisions)):
        if path is not None:
            check_name(path, option)
    before = RunFolder.open(run)
    opened, found = map_run(before)
    table = readable(found.table, opened.preprocessing.target)
    if opened is before and not as_json:
        say(f"{run} cannot be written, so the map is not kept there")
    worst = suspects(opened, found, min(top, len(found)), by)
    if out is not None:
        write_table(table, out)
    if decisions is not None:
        write_table(proposal(worst), decisions)
    if html is not None:
        from posterity.app import write_html

        write_html(opened, html, beside=beside, memory=found)
    counts = table["category"].value_counts().to_dict()
    if as_json:
        about = {"run": str(run), "rows": len(found), "categories": counts, "ranking": by or found.ranking}
        dump(about | {"reliability": str(found.reliability), "top": worst.to_dict("records")})
    else:
        _tell(found, counts, worst, by)
    if decisions is not None and not as_json:
        say(f"decisions to go through (keep, drop or relabel): {decisions}")
        if not found.posterior.likelihood.is_classification:
            say("  amounts have no proposals: write drop, or relabel and a value under label, beside the wrong rows")
        then("adapt", run, "--decisions", decisions, "--out", successor(run))
    if in_browser:
        from posterity.app import serve

        serve(opened, port=port, browser=open_browser, beside=beside, memory=found)


def _tell(found: MemoryMap, counts: Mapping[Any, int], worst: pd.DataFrame, by: str | None) -> None:
    """The map in words, and the rows to look at."""
    say(f"{len(found)} training rows: " + ", ".join(f"{count} {name}" for name, count in counts.items()))
    if found.reliability.warning:
        say(f"what-if estimates: {found.reliability.warning}")
    say(f"most suspicious by {by or found.ranking}:")
    shown = [name for name in _FIGURES if name in worst]
    show_table(worst[[*shown, *[name for name in worst.columns if name not in set(found.table) | set(shown)]]])
