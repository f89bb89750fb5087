"""k-centre: each next example is the one that is farthest from all that are labelled or chosen."""

from __future__ import annotations

from torch import Tensor

from posterity.adaptation.selection import farthest_first
from posterity.errors import expected
from posterity.exploration.distances import places, to_nearest
from posterity.exploration.question import PoolQuestion


def choose(question: PoolQuestion, k: int) -> tuple[Tensor, Tensor]:
    """A batch that covers the pool in the features of the last layer: positions, and the distance each had.

    Where no linear layer makes the outputs, the inputs themselves are the features. Where nothing is labelled, the
    first is the one farthest from the mean.

    References:
        Sener and Savarese, "Active learning for convolutional neural networks: a core-set approach", 2018.
    """
    found = places(question)
    if found is None:
        raise expected("inputs", "one tensor, for distances between examples", "several")
    features = found.pool[question.open]
    if found.labelled is None:
        nearest = (features - features.mean(0)).square().sum(1)
    else:
        nearest = to_nearest(features, found.labelled)
    rows, distances = farthest_first(features, k, nearest)
    return question.open[rows], distances.cpu()
