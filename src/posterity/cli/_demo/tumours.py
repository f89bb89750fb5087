"""The first table of the demo: what a network learns of a small table with untuned settings, beside AdamW."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from posterity import metrics
from posterity.learning import fit
from posterity.prediction import predict

OURS = "po.fit"
BATCH = 64
CUTS = 3  # of the table into halves


@dataclass(frozen=True, eq=False)
class Tumours:
    """One network, trained in three ways on halves of scikit-learn's breast cancer, and tested on the other halves.

    Args:
        rows: Tumours that a network learns from.
        labels: Of the held-out ones, of all cuts.
        probs: Predictions of those, by name of the training.
        costs: Mean steps and seconds of each training.
    """

    rows: int
    labels: Tensor
    probs: dict[str, Tensor]
    costs: dict[str, dict[str, float]]

    @property
    def quality(self) -> pd.DataFrame:
        """A row of numbers for each training."""
        named = {"accuracy": metrics.accuracy, "NLL": metrics.nll, "ECE": metrics.ece}
        found = {
            name: {key: measure(probs, self.labels) for key, measure in named.items()} | self.costs[name]
            for name, probs in self.probs.items()
        }
        return pd.DataFrame(found).T


def learn(seed: int, steps: int) -> Tumours:
    """AdamW for so many steps, AdamW for as long as cross-validation finds best, and `po.fit` as it is."""
    from sklearn.datasets import load_breast_cancer

    cells, kinds = (torch.as_tensor(a) for a in load_breast_cancer(return_X_y=True))
    half = len(kinds) // 2
    ways: dict[str, dict[str, Any]] = {
        "AdamW": {"method": "adamw", "epochs": max(1, round(steps * BATCH / half))},
        "AdamW, best length": {"method": "adamw"},
        OURS: {},
    }
    labels: list[Tensor] = []
    probs: dict[str, list[Tensor]] = {name: [] for name in ways}
    costs = {name: {"steps": 0.0, "seconds": 0.0} for name in ways}
    for cut in range(seed, seed + CUTS):
        order = torch.randperm(len(kinds), generator=torch.Generator().manual_seed(cut))
        x, y = cells.float()[order], kinds.long()[order]
        x = (x - x[:half].mean(0)) / x[:half].std(0)
        labels.append(y[half:])
        for name, way in ways.items():
            torch.manual_seed(cut)
            network = nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
            started = time.perf_counter()
            run = fit(network, (x[:half], y[:half]), batch_size=BATCH, seed=cut, progress=False, **way)
            costs[name]["seconds"] += (time.perf_counter() - started) / CUTS
            costs[name]["steps"] += run.steps / CUTS
            probs[name].append(predict(run.model, run.posterior, x[half:]).probs)
    return Tumours(half, torch.cat(labels), {name: torch.cat(found) for name, found in probs.items()}, costs)
