"""Where examples lie: the features of the last layer, in which batches are spread out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from posterity.adaptation.heads import find_head
from posterity.batches import Batch
from posterity.exploration.question import PoolQuestion
from posterity.posterior import FittedModel


class Places(NamedTuple):
    """Features of a whole pool (N, D), and of what is labelled already, where that is known (M, D)."""

    pool: Tensor
    labelled: Tensor | None


def places(question: PoolQuestion) -> Places | None:
    """Features at the mean weights; the inputs themselves where no linear layer makes the outputs.

    Returns:
        The features; None where there is no such layer and inputs are not one tensor.
    """
    trained = question.trained
    with trained.at_mean():
        pool = _features(trained, trained.batches("features"))
        labelled = None if question.labelled is None else _features(trained, question.labelled)
    return None if pool is None else Places(pool, labelled)


def to_nearest(features: Tensor, others: Tensor) -> Tensor:
    """Squared distance of each row from the nearest of others, a piece at a time."""
    return torch.cat([torch.cdist(part, others).amin(1) for part in features.split(1024)]).square()


def _features(trained: FittedModel, data: Iterable[Batch]) -> Tensor | None:
    """What distances are taken between, (N, D), from inputs of which one batch at a time is held."""
    parts = []
    for batch in data:
        part = _of_batch(trained, batch.to(trained.device))
        if part is None:
            return None
        parts.append(part)
    return torch.cat(parts)


def _of_batch(trained: FittedModel, batch: Batch) -> Tensor | None:
    head = find_head(trained.model, batch.inputs)
    if head is not None:
        return head.features(trained.model, batch.inputs, len(batch))
    return batch.inputs.flatten(1).double() if isinstance(batch.inputs, Tensor) else None
