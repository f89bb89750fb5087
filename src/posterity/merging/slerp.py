"""Spherical interpolation between two models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posterity.errors import require
from posterity.merging._method import Chunk, Chunks, Method, Scope, weighted_sum

PARALLEL = 0.9995  # |cos Ω| above which the arc is a line


@dataclass(frozen=True)
class Slerp(Method):
    """θ = sin((1−t)Ω)/sin Ω · θ_a + sin(tΩ)/sin Ω · θ_b,  Ω the angle between the tensors, t = w_b / (w_a + w_b).

    Where the tensors are nearly parallel (|cos Ω| > 0.9995) the arc is replaced by the line between them.

    References:
        Shoemake, "Animating rotation with quaternion curves", 1985.
    """

    name = "slerp"
    needs_base = False
    averages = True

    @property
    def scope(self) -> Scope:
        return "tensor"

    def check(self, weights: Sequence[float]) -> None:
        super().check(weights)
        require(len(weights) == 2, "models", "two for slerp", len(weights))

    def measure(self, chunks: Chunks) -> Tensor:
        """aᵀb, ‖a‖², ‖b‖² over the tensor."""
        products = torch.zeros(3, dtype=torch.float64)
        for chunk in chunks():
            a, b = (t.reshape(-1).double() for t in chunk.models)
            products += torch.stack((a @ b, a @ a, b @ b)).cpu()
        return products

    def combine(self, chunk: Chunk, measured: Any) -> Tensor:
        first, second = chunk.weights
        t = second / (first + second)
        inner, a, b = measured.tolist()
        cosine = inner / math.sqrt(a * b) if a * b > 0 else 1.0
        if abs(cosine) > PARALLEL:
            return weighted_sum((1 - t, t), chunk.models)
        angle = math.acos(cosine)
        return weighted_sum([math.sin(s * angle) / math.sin(angle) for s in (1 - t, t)], chunk.models)
