"""Task arithmetic: add what each model learnt since the base, or subtract it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from posterity.merging._method import Method, Stretch, weighted_sum


@dataclass(frozen=True)
class TaskArithmetic(Method):
    """θ = θ₀ + Σ_t α_t Δ_t,  Δ_t = θ_t − θ₀; a negative α_t removes a task.

    References:
        Ilharco et al., "Editing models with task arithmetic", 2023.
    """

    name = "task_arithmetic"

    def combine(self, stretch: Stretch, measured: Any) -> Tensor:
        return weighted_sum(stretch.weights, stretch.deltas).add_(stretch.anchor)
