"""k-centre: each next example is the one that is farthest from all that are labelled or chosen."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from posterity.adaptation.heads import find_head
from posterity.adaptation.selection import farthest_first
from posterity.batches import Batch
from posterity.errors import expected
from posterity.exploration.question import PoolQuestion
from posterity.posterior import FittedModel


def choose(question: PoolQuestion, k: int) -> tuple[Tensor, Tensor]:
    """A batch that covers the pool in the features of the last layer: positions, and the distance each had.

    Where no linear layer makes the outputs, the inputs themselves are the features. Where nothing is labelled, the
    first is the one farthest from the mean.

    References:
        Sener and Savarese, "Active learning for convolutional neural networks: a core-set approach", 2018.
    """
    trained = question.trained
    with trained.at_mean():
        features = _features(trained, trained.batches("features"))[question.open]
        labelled = None if question.labelled is None else _features(trained, question.labelled)
    if labelled is None:
        nearest = (features - features.mean(0)).square().sum(1)
    else:
        nearest = torch.cat([torch.cdist(part, labelled).amin(1) for part in features.split(1024)]).square()
    rows, distances = farthest_first(features, k, nearest)
    return question.open[rows], distances.cpu()


def _features(trained: FittedModel, data: Iterable[Batch]) -> Tensor:
    """What distances are taken between, (N, D), from inputs of which one batch at a time is held."""
    return torch.cat([_of_batch(trained, batch.to(trained.device)) for batch in data])


def _of_batch(trained: FittedModel, batch: Batch) -> Tensor:
    head = find_head(trained.model, batch.inputs)
    if head is not None:
        return head.features(trained.model, batch.inputs, len(batch))
    if not isinstance(batch.inputs, Tensor):
        raise expected("inputs", "one tensor, for distances between examples", type(batch.inputs).__name__)
    return batch.inputs.flatten(1).double()
