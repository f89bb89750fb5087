"""The memory map of a run, in the terms of its data."""

from __future__ import annotations

from typing import Any

import pandas as pd

from posterity.errors import InvalidInput, Undefined
from posterity.memory import MemoryMap
from posterity.runs._folder import RunFolder
from posterity.runs.targets import Classes, Target

_IN_UNITS = ("label", "prediction", "loo_prediction", "suspected_label")


def map_run(run: RunFolder) -> tuple[RunFolder, MemoryMap]:
    """Draw the memory map of a run, and keep it there as the tables "memory" and "memory-map"."""
    try:
        found = run.memory_map()
    except Undefined as why:
        fix = "fit with --method ivon, laplace or bayes_by_backprop"
        raise InvalidInput(f"map: expected a Gaussian posterior ({fix}), got {run.config['method']}") from why
    table = readable(found.table, run.preprocessing.target)
    about = {"memory": {"ranking": found.ranking, "reliability": str(found.reliability)}}
    return run.updated(about, tables={"memory": table}, memory=found), found


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
    records = run.records("train")
    known = {*top, run.dataset.target} - {"id"}
    records = records.drop(columns=[name for name in records if name in known])
    return top.merge(records, on="id", how="left")
