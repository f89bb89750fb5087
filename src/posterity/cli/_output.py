"""Output of the commands: results on standard output, notes on standard error, JSON for machines."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posterity.cells import number
from posterity.errors import expected

if TYPE_CHECKING:
    import pandas as pd

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the run that is already there.")]

_ORDER = (
    *("accuracy", "balanced_accuracy", "rmse", "nll", "ece", "brier", "crps", "coverage", "level", "confidence"),
    "aurc",
)
_MEANINGS = {
    "accuracy": "share predicted right",
    "balanced_accuracy": "the mean of each class's accuracy",
    "rmse": "root mean squared error, in units of the target",
    "nll": "mean negative log-likelihood in nats, lower is better",
    "ece": "mean gap between confidence and accuracy, lower is better",
    "brier": "mean squared error of the probabilities, lower is better",
    "crps": "mean distance of the predicted distribution from the value, lower is better",
    "coverage": "share of values inside their interval, ideally the level",
    "level": "probability that an interval claims",
    "confidence": "mean probability of the predicted class",
    "aurc": "mean error rate when the least certain rows are left out one by one, lower is better",
}
UNCORRECTED = "held-out labels are as they were: wrong ones among them count against a corrected model"
_LONGEST = 40  # characters of a cell


def say(text: str) -> None:
    """Print to standard output."""
    typer.echo(text)


def then(*words: str | Path) -> None:
    """Print the next command of posterity, ready to be typed."""
    say("then: " + shlex.join(["posterity", *map(str, words)]))


def numbered(name: str) -> Iterator[str]:
    """A name, and others for when it is taken: NAME, NAME-2, NAME-3, ..."""
    return (name if k == 1 else f"{name}-{k}" for k in itertools.count(1))


def named(path: Path) -> Path:
    """A path that ends in a name, also where it was given as the folder where we are."""
    return path if path.name not in ("", "..") else Path(os.path.abspath(path))


def successor(run: Path) -> Path:
    """A name for the run that comes of another: RUN-2, and RUN-3 of that."""
    run = named(run)
    first = run.with_name(re.sub(r"(?<=.)-\d+$", "", run.name))
    names = numbered(str(first if first.exists() else run))
    return next(path for path in map(Path, names) if not path.exists())


def notes(lines: Iterable[str]) -> None:
    """Print a note to standard error."""
    for line in dict.fromkeys(lines):
        typer.echo(f"note: {line}", err=True)


def dump(value: Mapping[str, Any] | list[Any]) -> None:
    """Print JSON; NaN and infinity, which it does not have, become null."""
    typer.echo(json.dumps(_plain(value), indent=2, ensure_ascii=False))


def stem(path: Path) -> str:
    """The name of a folder, or of a file without its ending and that of its packing."""
    from posterity.runs.readers import without_packing

    whole = Path(os.path.abspath(path))
    return whole.name if whole.is_dir() else without_packing(whole).stem


def pairs(flag: str, given: list[str] | None) -> list[tuple[str, str]]:
    """Names and values of a flag that was given as NAME=VALUE, perhaps several times."""
    for pair in given or ():
        if "=" not in pair:
            raise expected(flag, "NAME=VALUE", pair)
    return [(name, value) for name, _, value in (pair.partition("=") for pair in given or ())]


def figures(found: Mapping[str, float]) -> str:
    """Figures in a line, the most telling first."""
    order = sorted(found, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))
    return ", ".join(f"{name} {number(found[name])}" for name in order)


def meanings(found: Mapping[str, float]) -> Iterator[str]:
    """A line for each figure that is known: what it means."""
    return (f"{name}: {_MEANINGS[name]}" for name in _ORDER if name in found)


def show_table(table: pd.DataFrame) -> None:
    """Print a table, with as many of its columns as fit."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console() if sys.stdout.isatty() else Console(width=160)
    shown, room = Table(box=None, pad_edge=False, header_style="bold"), console.width
    kept: list[list[str]] = []
    for name, column in table.items():  # two columns may have the same name
        cells = [_cell(value) for value in column]
        width = max(len(text) for text in (str(name), *cells))
        room -= width + 2
        if room < 0 and kept:
            break
        numbers = all(isinstance(value, (int, float)) or hasattr(value, "dtype") for value in column)
        shown.add_column(Text(str(name)), justify="right" if numbers else "left", no_wrap=True)
        kept.append(cells)
    for row in zip(*kept):
        shown.add_row(*(Text(cell) for cell in row))  # Text: what is in the data is no markup
    console.print(shown)


def _cell(value: Any) -> str:
    if value is None or value != value:
        return ""
    text = number(value) if isinstance(value, float) else " ".join(str(value).split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if hasattr(value, "item"):  # numbers of numpy
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
