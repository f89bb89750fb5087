"""`posterity doctor`: what is wrong with a run, and what to do about it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from posterity.cli._output import Json, dump, say


def doctor(run: Annotated[Path, typer.Argument(help="Folder of the run.")], as_json: Json = False) -> None:
    """Check files, data, training, posterior and calibration of a run. Exit code 1 if a check fails."""
    from posterity.runs import RunFolder
    from posterity.runs.doctor import examine

    found = examine(RunFolder.open(run))
    if as_json:
        dump({"run": str(run), "findings": [vars(finding) for finding in found]})
    elif found:
        for finding in found:
            say(f"{finding.name}: {finding.what}\n  try: {finding.remedy}")
    else:
        say("nothing wrong was found with files, data, training, posterior and calibration")
    raise typer.Exit(1 if found else 0)
