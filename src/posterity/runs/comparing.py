"""Two runs side by side, on the held-out rows that both have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from posterity.cells import number
from posterity.errors import InvalidInput
from posterity.runs._folder import RunFolder


@dataclass(frozen=True, eq=False)
class Comparison:
    """How two runs differ.

    Args:
        figures: A row for each figure of merit: of the first run, of the second, their difference.
        rows: Number of held-out rows that both predicted.
        changed: How many of them are predicted differently (classes), or the mean absolute difference of predictions.
        nll_change: Mean change of the negative log-likelihood from the first run to the second, row by row.
        standard_error: Of that mean: a change within two of them may be chance.
        settings: Settings in which the runs differ.
        classes: Whether classes are predicted; otherwise amounts or counts.
    """

    figures: pd.DataFrame
    rows: int
    changed: float
    nll_change: float
    standard_error: float
    settings: dict[str, tuple[object, object]]
    classes: bool = True

    @property
    def difference(self) -> str:
        """How far the predictions differ, in a few words."""
        if self.classes:
            return f"{self.changed:g} predicted differently"
        return f"predictions differ by {number(self.changed)} on average"

    @property
    def verdict(self) -> str:
        """The paired difference, in a sentence."""
        if self.rows < 2 or not self.standard_error > 0:
            return "the held-out rows show no difference between them"
        size = f"{abs(self.nll_change):.4g} ± {self.standard_error:.2g} nats a row"
        if abs(self.nll_change) <= 2 * self.standard_error:
            return f"no difference beyond chance ({size})"
        return f"the {'second' if self.nll_change < 0 else 'first'} is better by {size}"


def compare_runs(a: RunFolder, b: RunFolder) -> Comparison:
    """Compare two runs that predict the same thing."""
    if a.preprocessing.target.name != b.preprocessing.target.name:
        names = f"{a.preprocessing.target.name!r} and {b.preprocessing.target.name!r}"
        raise InvalidInput(f"compare: expected two runs that predict the same, got {names}")
    if not (a.has("predictions") and b.has("predictions")):
        raise InvalidInput("compare: expected two runs with held-out rows (fit --test), got one without")
    pairs = _pairs(a, b)
    change = pairs["nll_b"] - pairs["nll_a"]
    if "prediction_a" in pairs:
        changed = float((pairs["prediction_a"] != pairs["prediction_b"]).sum())
    else:
        changed = float((pairs["mean_a"] - pairs["mean_b"]).abs().mean())
    common = [name for name in a.metrics if name in b.metrics]
    figures = pd.DataFrame(
        {"figure": common, "first": [a.metrics[n] for n in common], "second": [b.metrics[n] for n in common]}
    )
    return Comparison(
        figures.assign(difference=figures["second"] - figures["first"]),
        len(pairs),
        changed,
        float(change.mean()),
        float(change.std(ddof=1) / np.sqrt(len(change))) if len(change) > 1 else 0.0,
        _settings(a, b),
        "prediction_a" in pairs,
    )


def _pairs(a: RunFolder, b: RunFolder) -> pd.DataFrame:
    """The predictions of both runs for the same held-out rows, side by side."""
    (file, places), (other, others) = (run.dataset.place(run.folder, run.predictions["id"]) for run in (a, b))
    if file != other:
        raise InvalidInput("compare: expected held-out rows of the same file, or with names (fit --id), got others")
    pairs = a.predictions.assign(id=places).merge(b.predictions.assign(id=others), on="id", suffixes=("_a", "_b"))
    pairs = pairs[pairs["label_a"] == pairs["label_b"]]
    if len(pairs) == 0:
        raise InvalidInput("compare: expected held-out rows that both runs have, got none")
    return pairs


def _settings(a: RunFolder, b: RunFolder) -> dict[str, tuple[object, object]]:
    before = {**a.config, **a.record.rows._asdict(), "classes": a.preprocessing.target.outputs}
    after = {**b.config, **b.record.rows._asdict(), "classes": b.preprocessing.target.outputs}
    return {
        name: (before.get(name), after.get(name)) for name in {**before, **after} if before.get(name) != after.get(name)
    }
