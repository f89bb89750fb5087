"""Uncertainty-based gradient matching: task vectors weighted by their curvature."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from posterity.errors import InvalidInput
from posterity.merging._method import Chunk, Method, weighted_sum


@dataclass(frozen=True)
class GradientMatching(Method):
    """The sum of what each task added to the base, in natural parameters.

        θ = θ₀ + H̄⁻¹ Σ_t α_t (P₀ + N_t H_t) Δ_t,    H̄ = P₀ + Σ_t α_t N_t H_t,    P₀ = δ₀ + N₀ H₀

    For quadratic losses and models trained with the base as prior this is the joint optimum, and a task with α = −1 is
    removed as if the model had never seen it. Without curvature (H = 0) it is task arithmetic, which is what is done
    where P₀ and all H_t vanish.

    References:
        Daheim, Möllenhoff, Ponti, Gurevych and Khan, "Model merging by uncertainty-based gradient matching", 2024.
    """

    name = "gradient_matching"
    needs_curvature = True

    def combine(self, chunk: Chunk, measured: Any) -> Tensor:
        prior = chunk.base_precision
        assert prior is not None
        precision = prior + weighted_sum(chunk.weights, chunk.curvatures)  # H̄
        blank = reduce(torch.logical_and, (H == 0 for H in chunk.curvatures), prior == 0)
        if not bool(((precision > 0) | blank).all()):
            least = precision.min().item()  # NaN where there is one
            why = "a curvature is NaN" if math.isnan(least) else "more was removed than was there"
            raise InvalidInput(f"H̄: expected a positive precision after merging, got {least:.3g}; {why}")
        pulls = [
            torch.where(blank, weight, weight * (prior + curvature) / precision)
            for weight, curvature in zip(chunk.weights, chunk.curvatures, strict=True)
        ]
        return chunk.anchor + weighted_sum(pulls, chunk.deltas)
