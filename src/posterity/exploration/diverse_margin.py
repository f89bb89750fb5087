"""Doubtful examples that differ: each next one has two close classes and lies far from all labelled or chosen."""

from __future__ import annotations

import torch
from torch import Tensor

from posterity.exploration.criteria import margin
from posterity.exploration.distances import places, to_nearest
from posterity.exploration.question import PoolQuestion

_CLOSE = 1e-6  # of a distance that is at most 2: copies are told apart by their margin


def choose(question: PoolQuestion, k: int) -> tuple[Tensor, Tensor]:
    """Greedily the largest (1 − (p₁ − p₂)) · (1 − cos), with the cosine to the nearest that is labelled or chosen.

    By margins alone a batch holds many examples of one doubt, and one label would have settled it. By distances alone
    it holds examples whose class is clear. Directions are those of the features of the last layer, centred. Where there
    are no features, the batch is that of the largest margins.

    Returns:
        Positions in the pool, and the score that each had when it was taken.
    """
    scores = margin(question)
    rows = question.shortlist(scores)
    doubt = scores[rows]
    found = places(question)
    if found is None:
        return rows[:k], doubt[:k]
    centre = found.pool.mean(0)
    unit = _direction(found.pool[rows.to(found.pool.device)] - centre)
    doubt = doubt.to(unit)
    # For vectors of length 1 half of the squared distance is 1 − cos.
    nearest = unit.new_full((len(unit),), 2.0)
    if found.labelled is not None:
        nearest = to_nearest(unit, _direction(found.labelled - centre)) / 2
    chosen: list[int] = []
    values: list[float] = []
    while len(chosen) < k:
        worth = doubt * nearest.clamp_min(_CLOSE)
        worth[chosen] = -torch.inf
        chosen.append(int(worth.argmax()))
        values.append(worth[chosen[-1]].item())
        nearest = torch.minimum(nearest, 1 - unit @ unit[chosen[-1]])
    return rows[torch.tensor(chosen)], torch.tensor(values, dtype=torch.float64)


def _direction(features: Tensor) -> Tensor:
    return torch.nn.functional.normalize(features, dim=1)
