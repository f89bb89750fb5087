"""Tables of a run: parquet where pyarrow is there, CSV otherwise, read back as they were."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path

import pandas as pd

from posterity.errors import MissingExtra, RefusedFile, expected
from posterity.files import write_bytes


def suffix() -> str:
    """The ending that tables written here have."""
    return ".parquet" if importlib.util.find_spec("pyarrow") else ".csv"


def packed(table: pd.DataFrame, ending: str) -> bytes:
    """A table as the bytes of a file that ends so."""
    if ending == ".csv":
        return table.to_csv(index=False).encode()
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


def read_table(path: Path) -> pd.DataFrame:
    """Read a table that was written here."""
    try:
        if path.suffix == ".parquet":
            return pd.read_parquet(path)
        return pd.read_csv(path, float_precision="round_trip")
    except ImportError as why:
        raise MissingExtra(f"{path}: expected the package pyarrow for parquet files; pip install pyarrow") from why
    except (ValueError, OSError) as why:
        raise RefusedFile(f"{path}: expected a table, got an error: {why}") from why
