"""Cells of tables as text: numbers for people, and texts that a spreadsheet would run, escaped and read back.

A cell that begins with =, +, -, @, a tab or a carriage return is a formula to a spreadsheet. An apostrophe before it
makes it a text. Numbers are not changed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-](inf|nan)")


def number(value: float) -> str:
    """Four digits of a number, or all before its point where these are more and can still be read.

    Examples:
        >>> [number(value) for value in (50740.45, 0.123456, -0.0, 2e12)]
        ['50740', '0.1235', '0', '2e+12']
    """
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e9 else f"{value + 0.0:.4g}"


def counted(number: int | str, thing: str) -> str:
    """A number of things, one or several.

    Examples:
        >>> counted(1, "row"), counted(2, "row")
        ('1 row', '2 rows')
    """
    return f"{number} {thing}" if str(number) == "1" else f"{number} {thing}s"


def escaped(text: str) -> str:
    """A text as a cell that nothing runs.

    Examples:
        >>> escaped("=1+1"), escaped("-1.5"), escaped("cat")
        ("'=1+1", '-1.5', 'cat')
    """
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def unescaped(cell: str) -> str:
    """The text that a cell was made from."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) and not _NUMBER.fullmatch(cell[1:]) else cell


def escaped_table(table: pd.DataFrame) -> pd.DataFrame:
    """A table for a CSV file, column names included."""
    return _over(table, escaped)


def unescaped_table(table: pd.DataFrame) -> pd.DataFrame:
    """The table that a CSV file was made from."""
    return _over(table, unescaped)


def _over(table: pd.DataFrame, change: Any) -> pd.DataFrame:
    def one(value: Any) -> Any:
        return change(value) if isinstance(value, str) else value

    texts = {i: table.iloc[:, i] for i, kind in enumerate(table.dtypes) if kind.kind == "O"}
    touched = {i: c for i, c in texts.items() if any(isinstance(v, str) and _FORMULA.match(v) for v in c)}
    if not touched and not any(isinstance(name, str) and _FORMULA.match(name) for name in table.columns):
        return table
    found = table.copy()
    for i, column in touched.items():
        found.isetitem(i, [one(value) for value in column])
    found.columns = [one(name) for name in table.columns]
    return found
