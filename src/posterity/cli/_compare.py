"""`posterity compare`: two runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from posterity.cli._output import Json, dump, say, show_table


def compare(
    first: Annotated[Path, typer.Argument(metavar="RUN_A", help="Folder of a run.")],
    second: Annotated[Path, typer.Argument(metavar="RUN_B", help="Folder of another.")],
    as_json: Json = False,
) -> None:
    """Compare two runs on the held-out rows that both have."""
    from posterity.runs import RunFolder
    from posterity.runs.comparing import compare_runs

    found = compare_runs(RunFolder.open(first), RunFolder.open(second))
    if as_json:
        about = {"first": str(first), "second": str(second), "figures": found.figures.to_dict("records")}
        paired = {"rows": found.rows, "nll_change": found.nll_change, "standard_error": found.standard_error}
        dump(about | paired | {"changed": found.changed, "settings": found.settings, "verdict": found.verdict})
        return
    show_table(found.figures.rename(columns={"first": str(first), "second": str(second)}))
    for name, (before, after) in found.settings.items():
        say(f"{name}: {before} -> {after}")
    say(f"{found.rows} held-out rows in common, {found.difference}")
    say(f"verdict: {found.verdict}")
