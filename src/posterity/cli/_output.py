"""How the commands speak: results on standard output, notes on standard error, JSON for machines."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import pandas as pd

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the run that is already there.")]

_SHOWN = 14  # columns of a table that a terminal shows


def say(text: str) -> None:
    """Say something on standard output."""
    typer.echo(text)


def notes(lines: Iterable[str]) -> None:
    """Say what is unusual, on standard error."""
    for line in dict.fromkeys(lines):
        typer.echo(f"note: {line}", err=True)


def dump(value: Mapping[str, Any] | list[Any]) -> None:
    """Print JSON; NaN and infinity, which it does not have, become null."""
    typer.echo(json.dumps(_plain(value), indent=2, ensure_ascii=False))


def figures(found: Mapping[str, float]) -> str:
    """Figures in a line."""
    return ", ".join(f"{name} {value:.4g}" for name, value in found.items())


def show_table(table: pd.DataFrame) -> None:
    """Print a table as wide as the terminal allows."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console() if sys.stdout.isatty() else Console(width=160)
    shown = Table(box=None, pad_edge=False, header_style="bold")
    columns = list(table)[:_SHOWN]
    for name in columns:
        shown.add_column(Text(str(name)), justify="left" if table[name].dtype == object else "right", max_width=40)
    for row in table[columns].itertuples(index=False):
        shown.add_row(*(Text(_cell(value)) for value in row))  # Text: what is in the data is no markup
    console.print(shown)


def _cell(value: Any) -> str:
    if value is None or value != value:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else " ".join(str(value).split())[:200]


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
