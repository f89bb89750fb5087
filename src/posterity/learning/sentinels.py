"""Sentinels: examples that a training leaves out, so that they can say how much noise its weights should get.

How much there is to gain from noise, only examples that are not trained on can tell (`posterity.optim.watch`). Where a
user gives no validation data, and there are enough examples to spare some, one in twenty is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from posterity.batches import Batches
from posterity.learning.objective import Objective
from posterity.noise import seeded_apart
from posterity.optim.watch import ROWS

if TYPE_CHECKING:
    from posterity.learning.settings import FitSettings

FEWEST = 4000  # examples from which some can be spared
ONE_IN = 20
DECIDED = ("prior", "budget")  # options that leave nothing to find out


def set_apart(data: Batches, objective: Objective, settings: FitSettings) -> tuple[Batches, Batches | None]:
    """The examples to train on, and those to watch, if some are to be."""
    watches = settings.learner_type().watches_examples and settings.options.get("watch", True)
    free = settings.validation is None and settings.n is None and not any(map(settings.options.__contains__, DECIDED))
    known = objective.plain and objective.likelihood.is_classification
    if not (watches and free and known and data.has_positions and data.n >= FEWEST):
        return data, None
    order = torch.randperm(data.n, generator=seeded_apart(settings.seed))
    spared = order[_common(data)[order]][: min(ROWS, data.n // ONE_IN)]
    trained = torch.ones(data.n, dtype=torch.bool).index_fill(0, spared, False)
    return data.only(trained.nonzero()[:, 0]), data.only(spared)


def _common(data: Batches) -> Tensor:
    """Which examples have a class that can spare some, where classes are known: a rare one is learnt from whole."""
    targets = data.source[1] if isinstance(data.source, tuple) else None
    if targets is None or targets.ndim != 1:
        return torch.ones(data.n, dtype=torch.bool)
    _, which, counts = targets.cpu().unique(return_inverse=True, return_counts=True)
    return counts[which] >= 2 * ONE_IN
