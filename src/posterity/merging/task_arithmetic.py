"""Task arithmetic: add what each model learnt since the base, or subtract it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posterity.merging._method import Chunk, Method


@dataclass(frozen=True)
class TaskArithmetic(Method):
    """θ = θ₀ + Σ_t α_t Δ_t,  Δ_t = θ_t − θ₀; a negative α_t removes a task.

    References:
        Ilharco et al., "Editing models with task arithmetic", 2023.
    """

    name = "task_arithmetic"
    beside = 0

    def combine(self, chunk: Chunk, measured: Any) -> Tensor:
        total = base = chunk.anchor
        for weight, model in zip(chunk.weights, chunk.models, strict=True):
            total = torch.add(total, model.sub_(base), alpha=weight, out=model)  # whose room is free now
        return total
