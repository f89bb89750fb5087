"""Tables of text: CSV with commas, semicolons, tabs or bars, read in pieces, with the rate on a terminal."""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pandas as pd

from posterity.errors import InvalidInput
from posterity.progress import track

SEPARATORS = ",;\t|"
_MISSING = ["?", "n/a", "NA", "N/A", "#N/A", "null", "NULL", "None", "none", "nan", "NaN", ""]
_PIECE = 50_000  # rows that are read at a time
# Everything is read as text: the kind of a column is decided once, by its training rows, not file by file.
_SETTINGS: dict[str, Any] = {"dtype": str, "na_values": _MISSING, "keep_default_na": False, "skipinitialspace": True}


def read_delimited(path: Path, missing: Sequence[str] = _MISSING, show: bool | None = None) -> pd.DataFrame:
    """The table of a file, every value as text; the first line has the names of its columns.

    Args:
        path: The file.
        missing: Words that stand for missing values.
        show: Whether to show progress, as for `track`.
    """
    settings = _SETTINGS | {"sep": _separator(path)}
    names = pd.read_csv(path, header=None, nrows=1, **settings).iloc[0].dropna()
    settings |= {"na_values": list(missing)}
    twice = names[names.duplicated()]
    if len(twice):  # pandas would rename them
        raise InvalidInput(f"{path}: expected columns of different names, got {twice.iloc[0]!r} twice")
    with pd.read_csv(path, chunksize=_PIECE, **settings) as pieces:
        rate = _Rate()
        table = pd.concat(list(track(rate.count(pieces), "reading", show=show, note=rate.note)), ignore_index=True)
        if not rate.named:
            got = "more values than names"
            raise InvalidInput(f"{path}: expected a name for every column in the first line, got {got}")
    return table


class _Rate:
    """Rows so far, and rows a second."""

    def __init__(self) -> None:
        self.rows, self.started, self.named = 0, time.monotonic(), True

    def count(self, pieces: Any) -> Iterator[pd.DataFrame]:
        for piece in cast("Iterator[pd.DataFrame]", pieces):
            self.rows += len(piece)
            self.named &= isinstance(piece.index, pd.RangeIndex)
            yield piece

    def note(self) -> str:
        return f"{self.rows:,} rows, {self.rows / max(time.monotonic() - self.started, 1e-9):,.0f} a second"


def _separator(path: Path) -> str:
    """The separator of the names in the first line; a file that ends in .tsv has tabs."""
    if ".tsv" in path.suffixes:
        return "\t"
    # A separator that no table has: pandas unpacks the file, and hands over the whole line.
    line = str(pd.read_csv(path, header=None, nrows=1, sep="\x01", quoting=csv.QUOTE_NONE, dtype=str).iloc[0, 0])
    return max(SEPARATORS, key=lambda mark: _cells(line, mark))  # the comma where they tie


def _cells(line: str, mark: str) -> int:
    """How many cells a line has if they are separated so."""
    try:
        return len(next(csv.reader([line], delimiter=mark), []))
    except csv.Error:  # one cell of more than 131072 characters: the names of a wide table, with another separator
        return 1 + line.count(mark)
