"""Tables: CSV inside a run, which every install reads, and CSV or parquet for exported files."""

from __future__ import annotations

import csv
import importlib.util
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from posterity.cells import escaped, escaped_table, unescaped_table
from posterity.errors import MissingExtra, RefusedFile, expected
from posterity.files import write_bytes

# From pandas 3.1 on, numbers are read exactly without being told, and the option is deprecated.
_OLD = tuple(int(part) for part in pd.__version__.split(".")[:2]) < (3, 1)
_EXACT: dict[str, Any] = {"float_precision": "round_trip"} if _OLD else {}

SUFFIX = ".csv"  # of tables in a run; their kinds of columns are kept beside them, in `run.json`
OLDER = ".parquet"  # what earlier versions wrote where pyarrow was installed
TEXT = "text"
_NUMBERS = ("int64", "Int64", "float64", "float32", "bool")


def kinds(table: pd.DataFrame) -> dict[str, str]:
    """What each column holds: "text", or the type of its numbers. CSV alone cannot tell the class 1 from the number.

    Examples:
        >>> kinds(pd.DataFrame({"id": [3, 5], "label": ["0", "1"]}))
        {'id': 'int64', 'label': 'text'}
    """
    return {str(name): str(kind) if str(kind) in _NUMBERS else TEXT for name, kind in table.dtypes.items()}


def packed(table: pd.DataFrame, ending: str) -> bytes:
    """A table as the bytes of a file that ends so."""
    if ending == ".csv":
        cells = escaped_table(table)
        text = cells.to_csv(index=False)
        # A carriage return ends a line for readers, though writers do not quote it of themselves.
        return (cells.to_csv(index=False, quoting=csv.QUOTE_NONNUMERIC) if "\r" in text else text).encode()
    if importlib.util.find_spec("pyarrow") is None:
        raise MissingExtra("tables: expected the package pyarrow for parquet files; pip install pyarrow, or use .csv")
    buffer = io.BytesIO()
    table.to_parquet(buffer, index=False)
    return buffer.getvalue()


def check_name(path: Path, option: str = "out") -> None:
    """Refuse what no table can be written to, before there is one to lose."""
    if path.is_dir():
        raise expected(option, "a file to write", f"the folder {path}")
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise expected(option, "a name that ends in .csv or .parquet", path.name)


def write_table(table: pd.DataFrame, path: Path) -> None:
    """Write a table atomically, in the format of its name."""
    check_name(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, packed(table, path.suffix.lower()))


def read_table(path: Path, columns: Mapping[str, str]) -> pd.DataFrame:
    """Read a table of a run.

    Args:
        path: A CSV file, or a parquet file of an earlier version.
        columns: What its columns hold, see `kinds`; those that are not named are read as pandas guesses.
    """
    try:
        if path.suffix == OLDER:
            return pd.read_parquet(path)
        known = {escaped(name): kind for name, kind in columns.items() if kind in (TEXT, *_NUMBERS)}
        types = {name: str if kind == TEXT else kind for name, kind in known.items()}
        # Only an empty cell is missing: a class may be called "None" or "NA".
        return unescaped_table(pd.read_csv(path, dtype=types, keep_default_na=False, na_values=[""], **_EXACT))
    except ImportError as why:
        raise MissingExtra(f"{path}: expected the package pyarrow for parquet files; pip install pyarrow") from why
    except (ValueError, OSError) as why:
        raise RefusedFile(f"{path}: expected a table, got an error: {why}") from why
