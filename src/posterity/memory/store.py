"""Memory maps on disk: columns as tensors, everything else as JSON."""

from __future__ import annotations

import importlib.util
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from posterity.batches import Batch
from posterity.errors import MissingExtra
from posterity.files import load_record, save_record
from posterity.memory.reliability import Reliability
from posterity.posterior import Memory

VERSION = 1


def save(folder: str | Path, columns: pd.DataFrame, reliability: Reliability, guides: tuple[float, float]) -> None:
    """Write a map; the category follows from its columns and guides."""
    content = {"columns": list(columns), "guides": list(guides), "reliability": asdict(reliability)}
    tensors = {str(name): torch.as_tensor(columns[name].to_numpy(copy=True)) for name in columns}
    save_record(folder, "memory_map", version=VERSION, content=content, tensors=tensors)


def load(folder: str | Path) -> tuple[pd.DataFrame, Reliability, tuple[float, float]]:
    """Read what `save` wrote."""
    content, tensors = load_record(folder, "memory_map", version=VERSION)
    columns = pd.DataFrame({name: tensors[name].numpy() for name in content["columns"]})
    leverage, error = content["guides"]
    return columns, Reliability(**content["reliability"]), (leverage, error)


def memory_of(batches: list[Batch], outputs: list[Tensor]) -> Memory:
    """Examples in batches as one `Memory`, on the CPU."""
    parts = [batch.to("cpu") for batch in batches]
    return Memory.of(Batch.concatenate(parts), predictions=torch.cat(outputs).cpu())


def to_parquet(table: pd.DataFrame, path: str | Path) -> None:
    """Write a table as parquet, where pyarrow is there."""
    if importlib.util.find_spec("pyarrow") is None:
        raise MissingExtra(
            "to_parquet: expected the package pyarrow (pip install pyarrow), got none; to_csv needs nothing"
        )
    table.to_parquet(path, index=False)
