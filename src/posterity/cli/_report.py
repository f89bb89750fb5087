"""`posterity report`: one page about a run."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from posterity.cli._output import Json, dump, say


def report(run: Annotated[Path, typer.Argument(help="Folder of the run.")], as_json: Json = False) -> None:
    """Write report.html into the run: accuracy, calibration, effects of columns and suspected labels, in one file."""
    from posterity.app.report import write_report
    from posterity.app.run_report import contents
    from posterity.runs import RunFolder

    opened = RunFolder.open(run)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        write_report(contents(opened), page)
        path = opened.keep("report.html", page.read_bytes())
    if as_json:
        dump({"run": str(run), "report": str(path)})
    else:
        say(f"report: {path}")
