"""Fisher averaging: every weight is averaged by how sure each model is of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posterity.merging._method import Chunk, Method, weighted_sum
from posterity.merging.linear import Linear


@dataclass(frozen=True)
class FisherAverage(Method):
    """θ = Σ_t w_t F_t θ_t / Σ_t w_t F_t; where no model has information, the plain average.

    A negative F_t, as estimates of curvature may have it, counts as zero: near Σ_t w_t F_t = 0 it would tear θ away.

    References:
        Matena and Raffel, "Merging models with Fisher-weighted averaging", 2022.
    """

    name = "fisher"
    needs_base = False
    needs_curvature = True
    averages = True

    def combine(self, chunk: Chunk, measured: Any) -> Tensor:
        pulls = [weight * F.clamp(min=0) for weight, F in zip(chunk.weights, chunk.curvatures, strict=True)]
        total = weighted_sum([1.0] * len(pulls), pulls)
        known = total != 0
        average = weighted_sum(pulls, chunk.models) / total.where(known, 1)
        return torch.where(known, average, Linear().combine(chunk, None))
