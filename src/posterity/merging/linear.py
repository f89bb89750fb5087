"""Linear averaging ("model soups")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from posterity.merging._method import Chunk, Method, weighted_sum


@dataclass(frozen=True)
class Linear(Method):
    """θ = Σ_t w_t θ_t / Σ_t w_t.

    References:
        Wortsman et al., "Model soups: averaging weights of multiple fine-tuned models", 2022.
    """

    name = "linear"
    needs_base = False
    averages = True

    def combine(self, chunk: Chunk, measured: Any) -> Tensor:
        total = sum(chunk.weights)
        return weighted_sum([weight / total for weight in chunk.weights], chunk.models)
