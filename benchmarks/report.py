"""Tables of the benchmarks: Markdown with the command, versions, seeds and machine that made them."""

from __future__ import annotations

import platform
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

import posterity


def header(title: str, **facts: object) -> str:
    """Title line, command, versions and whatever else decides the figures."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"
    command = "python " + " ".join([f"benchmarks/{Path(sys.argv[0]).name}", *_public(sys.argv[1:])])
    lines = [f"## {title}", "", f"`{command}`", ""]
    lines.append(
        f"posterity {posterity.__version__}, torch {torch.__version__}, Python {platform.python_version()}, {device}"
    )
    lines += [f"; {name.replace('_', ' ')}: {value}" for name, value in facts.items()]
    return "\n".join(lines[:4]) + "\n" + "".join(lines[4:]) + "\n"


def _public(arguments: Sequence[str]) -> list[str]:
    """The arguments without the place of the data, which is the machine's own affair."""
    shown, skip = [], False
    for argument in arguments:
        if skip or argument in ("--data", "--out"):
            skip = not skip
            continue
        shown.append(argument)
    return shown


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; numbers arrive already formatted."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Mean ± standard deviation over seeds."""
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{statistics.fmean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


def publish(name: str, text: str, out: str | None) -> None:
    """Print a table and, with an output folder, keep it as `name`.md there."""
    print(text)
    if out:
        Path(out).mkdir(parents=True, exist_ok=True)
        (Path(out) / f"{name}.md").write_text(text, encoding="utf-8")
