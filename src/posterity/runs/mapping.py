"""The memory map of a run, in the terms of its data."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pandas as pd
import torch

from posterity.errors import InvalidInput, RefusedFile, Undefined
from posterity.memory import MemoryMap
from posterity.runs._folder import RunFolder
from posterity.runs.columns import as_text
from posterity.runs.targets import Classes, Target

NEIGHBOURS, SHOWN = 10, 80  # most similar rows whose labels are counted; characters of the most similar one
_IN_UNITS = ("label", "prediction", "loo_prediction", "suspected_label", "suggested_label")


def map_run(run: RunFolder) -> tuple[RunFolder, MemoryMap]:
    """Draw the memory map of a run, and keep it there as the tables "memory" and "memory-map".

    Where the run cannot be written, on a read-only disk for instance, the same run is returned with the map.
    """
    try:
        found = run.memory_map()
    except Undefined as why:
        fix = "fit with --method ivon, laplace or bayes_by_backprop"
        raise InvalidInput(f"map: expected a Gaussian posterior ({fix}), got {run.config['method']}") from why
    table = readable(found.table, run.preprocessing.target)
    about = {"memory": {"ranking": found.ranking, "reliability": str(found.reliability)}}
    try:
        return run.updated(about, tables={"memory": table}, memory=found), found
    except RefusedFile:
        raise
    except OSError:
        return run, found


def readable(table: pd.DataFrame, target: Target) -> pd.DataFrame:
    """Labels and predictions as the data have them."""
    columns: dict[str, Any] = {}
    for name in _IN_UNITS:
        if name in table:
            there = table[name].notna()
            decoded = pd.Series(None, index=table.index, dtype=object if isinstance(target, Classes) else float)
            decoded[there] = target.decode(table.loc[there, name].to_numpy())
            columns[name] = decoded
    return table.assign(**columns)


def suspects(run: RunFolder, found: MemoryMap, k: int, by: str | None = None) -> pd.DataFrame:
    """The k most suspicious rows, most suspicious first, with the columns of the data beside the figures."""
    top = readable(found.top(k, by), run.preprocessing.target)
    records = _with_neighbours(run, run.records("train"), top["id"].tolist())
    known = {*top, run.dataset.target} - {"id"}
    records = records.drop(columns=[name for name in records if name in known])
    return top.merge(records, on="id", how="left")


def _with_neighbours(run: RunFolder, records: pd.DataFrame, ids: list[int]) -> pd.DataFrame:
    """For vectors of a frozen network: how the most similar rows are labelled, and the most similar one."""
    encoding, target = run.dataset.encoding, run.dataset.target
    block = run.select("train").rows.block
    if encoding is None or block is None or not isinstance(run.preprocessing.target, Classes):
        return records
    vectors = torch.nn.functional.normalize(torch.from_numpy(block - block.mean(0)), dim=1)
    place = {i: row for row, i in enumerate(records["id"])}
    rows = [place[i] for i in ids]
    alike = vectors[rows] @ vectors.T
    alike[range(len(rows)), rows] = -torch.inf
    nearest = alike.topk(min(NEIGHBOURS, len(records) - 1), dim=1).indices.tolist()
    labels, shown = as_text(records[target]), as_text(records[encoding.column])
    counts = [Counter(labels[k] for k in one).most_common(3) for one in nearest]
    about = {
        "id": ids,
        "neighbours": [", ".join(f"{count} {label}" for label, count in one) for one in counts],
        "nearest": [f"{labels[one[0]]}: {shown[one[0]][:SHOWN]}" for one in nearest],
    }
    return records.merge(pd.DataFrame(about), on="id", how="left")
