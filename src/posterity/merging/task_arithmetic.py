"""Task arithmetic: add what each model learnt since the base, or subtract it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from posterity.merging._method import Method, Stretch


@dataclass(frozen=True)
class TaskArithmetic(Method):
    """θ = θ₀ + Σ_t α_t Δ_t,  Δ_t = θ_t − θ₀; a negative α_t removes a task.

    References:
        Ilharco et al., "Editing models with task arithmetic", 2023.
    """

    name = "task_arithmetic"
    beside = 0

    def combine(self, stretch: Stretch, measured: Any) -> Tensor:
        base, weights = stretch.anchor, stretch.weights
        total, *others = [model.sub_(base) for model in stretch.models]
        total.mul_(weights[0])
        for weight, delta in zip(weights[1:], others, strict=True):
            total.add_(delta, alpha=weight)
        return total.add_(base)
