"""`posterity demo`: the whole circle on scikit-learn's digits, offline, in less than a minute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option(help="Folder for report.html.")] = Path("demo-output"),
    seed: Annotated[int, typer.Option(help="Seed of the split, the planted labels, the networks and the noise.")] = 0,
    steps: Annotated[int, typer.Option(min=20, help="Training steps of AdamW, and of the networks of digits.")] = 2000,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Compare with AdamW on a table; find wrong labels of digits, answer a what-if, then adapt instead of retraining.

    Every number is that of this run. Needs the extras plots and models.
    """
    import torch
    from rich.console import Console

    from posterity.app.report import write_report
    from posterity.cli._demo.page import contents
    from posterity.cli._demo.study import run
    from posterity.cli._demo.terminal import show

    torch.set_num_threads(1)  # the networks are small, and threads would only wait for each other
    study = run(seed, steps)
    out.mkdir(parents=True, exist_ok=True)
    write_report(contents(study), out / "report.html")
    if as_json:
        typer.echo(json.dumps(study.numbers(), indent=2))
    else:
        show(study, Console())
        typer.echo(f"With pictures: {out / 'report.html'}")
