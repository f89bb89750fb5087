"""What is asked of a pool: a model at its posterior, inputs without labels, and how to look at them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posterity.batches import Batch, Batches, in_order
from posterity.errors import expected, require
from posterity.inputs import length
from posterity.memory.ids import unique
from posterity.posterior import FittedModel, Memory
from posterity.prediction import Prediction, predict


@dataclass(frozen=True, eq=False)
class PoolQuestion:
    """A pool and the posterior that ranks it.

    Args:
        trained: Model, posterior and pool; the targets of the pool are never looked at.
        open: Positions in the pool that may be chosen.
        labelled: What is labelled already, where it is known.
        samples: Draws of the weights.
        seed: Of everything random.
        candidates: How many of the best single examples the criteria for batches look at.
    """

    trained: FittedModel
    open: Tensor
    labelled: Batches | None
    samples: int
    seed: int
    candidates: int

    @cached_property
    def prediction(self) -> Prediction:
        """The predictive of the whole pool, without its draws."""
        trained = self.trained
        return predict(trained.model, trained.posterior, trained.data, self.samples, seed=self.seed, keep_samples=False)

    def shortlist(self, scores: Tensor) -> Tensor:
        """Positions of the candidates with the highest scores of their own, best first."""
        return self.open[scores[self.open].argsort(descending=True, stable=True)[: self.candidates]]

    def examples(self, positions: Tensor) -> Batch:
        """Some of the pool, on the device of the model."""
        return self.trained.data.take(positions).to(self.trained.device)

    def known(self, criterion: str) -> Batches:
        """What is labelled already, for criteria that cannot do without it."""
        if self.labelled is None:
            raise expected(criterion, "the labelled data (labelled=), or a posterior that carries a memory", "neither")
        return self.labelled


def as_pool(pool: Any, batch_size: int) -> Batches:
    """A pool as batches with ids: inputs alone, or anything with targets, which are ignored."""
    if isinstance(pool, np.ndarray):
        pool = torch.as_tensor(pool)
    if isinstance(pool, (Tensor, Mapping)):
        count = length(pool)
        require(count > 0, "pool", "at least one example", "none")
        pool = (pool, torch.zeros(count))
    found = in_order(pool, batch_size)
    # Scores come from one pass and the examples behind them from positions: the two have to agree.
    require(found.keeps_order, "pool", "a loader in the order of its data", "one that shuffles or samples")
    return found


def ids_of(pool: Batches) -> Tensor:
    """The id of every example of a pool, in order; an error if one comes twice."""
    if isinstance(pool.source, tuple):
        return unique(pool.source[2].cpu()) if len(pool.source) == 3 else torch.arange(pool.n)
    return unique(torch.cat([batch.ids.cpu() for batch in pool]))


def as_labelled(labelled: Any, memory: Memory | None, batch_size: int) -> Batches | None:
    """The labelled data: what was given, or what the posterior remembers."""
    if labelled is not None:
        return in_order(labelled, batch_size)
    return None if memory is None else in_order((memory.inputs, memory.targets, memory.ids), batch_size)
