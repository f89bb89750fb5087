"""The effect of each column on predictions: the average prediction as one column changes, with its uncertainty."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch

from posterity.prediction import predict
from posterity.runs._folder import RunFolder
from posterity.runs.columns import Category, Column, Number, as_text
from posterity.runs.targets import Classes

ROWS, DRAWS, PLACES, LEVELS = 60, 16, 9, 6  # rows averaged over, draws of the weights, values asked for of a column
MOST = 60  # columns up to which effects are computed
_LEVEL = 0.9


@dataclass(frozen=True, eq=False)
class Effect:
    """The average prediction as one column changes and all others stay.

    Args:
        column: Its name.
        numeric: Whether its values are numbers.
        values: The values asked for.
        mean: Average prediction for each value and output, (V, K): probabilities of classes, or the amount.
        lower: Lower end of its interval over draws of the weights, (V, K).
        upper: Upper end.
        outputs: What each output is.
    """

    column: str
    numeric: bool
    values: list[Any]
    mean: np.ndarray[Any, Any]
    lower: np.ndarray[Any, Any]
    upper: np.ndarray[Any, Any]
    outputs: tuple[str, ...]

    @property
    def size(self) -> float:
        """How far the average prediction moves."""
        return float(np.ptp(self.mean, axis=0).max())


def effects(run: RunFolder, most: int = 6) -> list[Effect]:
    """The columns that move the average prediction most, the first one most.

        E_x [ p(y | x with x_j = v, θ) ],   averaged over some training rows, for each draw θ from the posterior

    Args:
        run: A run of a table; others have no columns to change.
        most: Number of columns.
    """
    used = [column for column in run.preprocessing.columns if isinstance(column, (Number, Category))]
    if not used or len(used) > MOST:
        return []
    everything, _ = run.select("train")
    rows = everything.take(np.random.default_rng(0).permutation(len(everything))[:ROWS])
    inputs, asked = [], []
    for column in used:
        values = _values(column, everything.table[column.name])
        asked.append(values)
        for value in values:
            table = rows.table.assign(**{column.name: pd.Series([value] * len(rows), index=rows.table.index)})
            inputs.append(run.preprocessing.inputs(replace(rows, table=table), []))
    p = predict(run.model(), run.posterior, torch.cat(inputs), DRAWS, method="sampled", seed=0, keep_samples=True)
    if p.outputs is None:
        return []
    target = run.preprocessing.target
    kinds = {"classes": lambda f: f.softmax(-1), "amount": lambda f: f, "count": lambda f: f.exp()}
    drawn = kinds[target.task](p.outputs.double())
    averaged = drawn.reshape(len(drawn), -1, len(rows), drawn.shape[-1]).mean(2).numpy()  # (draws, all values, K)
    names: tuple[str, ...] = (target.name,)
    if isinstance(target, Classes):
        names = target.names
    else:
        averaged = target.decode(averaged)
    ends = np.cumsum([len(values) for values in asked])[:-1]
    found = []
    for column, values, part in zip(used, asked, np.split(averaged, ends, axis=1)):
        low, high = np.quantile(part, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2], axis=0)
        found.append(Effect(column.name, isinstance(column, Number), values, part.mean(0), low, high, names))
    return sorted(found, key=lambda effect: -effect.size)[:most]


def _values(column: Column, training: pd.Series[Any]) -> list[Any]:
    """Values to evaluate: places among the training values of numbers, the commonest levels of categories."""
    if isinstance(column, Number):
        known = column.read(training)
        places = np.quantile(known[np.isfinite(known)], np.linspace(0.02, 0.98, PLACES))
        values = np.unique(places)
        if column.kind == "date":
            return [(pd.Timestamp(0) + pd.Timedelta(days=float(day))).strftime("%Y-%m-%d") for day in values]
        return values.tolist()
    counts = pd.Series(as_text(training)).value_counts()
    return [level for level in counts.index if level][:LEVELS]
