"""DARE: drop changes at random and rescale the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from posterity.errors import expected, require_seed
from posterity.merging._method import Chunk, Chunks, Method, Scope, weighted_sum
from posterity.merging.ties import Convention, check_convention, check_density, densities, elect_and_average
from posterity.noise import Key, normal


@dataclass(frozen=True)
class Dare(Method):
    """θ = θ₀ + Σ_t α_t s_t m_t Δ_t, with random masks m_t ~ Bernoulli(density).

    Args:
        density: Probability of keeping a change; or one for each model, in their order.
        rescale: "paper": s = 1/density, which keeps the expectation; "l1": s_t = ‖Δ_t‖₁ / ‖m_t Δ_t‖₁ over each
            tensor, as mergekit does, which keeps the norm.
        seed: Seed of the masks; the same seed drops the same changes, in memory or streamed.
        convention: Let the changes that are left elect signs as in TIES, by one of its conventions; a plain sum
            where it is None.

    References:
        Yu, Yu, Yu, Huang and Li, "Language models are super Mario: absorbing abilities from homologous models", 2024.
    """

    density: float | Sequence[float] = 0.5
    rescale: Literal["paper", "l1"] = "paper"
    seed: int = 0
    convention: Convention | None = None
    name = "dare"

    def __post_init__(self) -> None:
        check_density(self.density)
        require_seed(self.seed)
        if self.rescale not in ("paper", "l1"):
            raise expected("rescale", "'paper' or 'l1'", self.rescale)
        if self.convention is not None:
            check_convention(self.convention)

    def check(self, weights: Sequence[float]) -> None:
        super().check(weights)
        densities(self.density, len(weights))

    @property
    def scope(self) -> Scope:
        return "element" if self.rescale == "paper" else "tensor"

    def mask(self, model: int, chunk: Chunk) -> Tensor:
        """m_t of one model: true where its standard normal lies below the quantile of the density."""
        like, density = chunk.models[model], densities(self.density, len(chunk.models))[model]
        if density == 1:
            return torch.ones_like(like, dtype=torch.bool)
        key = Key(self.seed, 0, model, chunk.parameter)
        noise = normal(key, like.numel(), start=chunk.start, device=like.device)
        quantile = torch.special.ndtri(torch.tensor(density, dtype=torch.float64)).item()
        return (noise < quantile).reshape(like.shape)

    def measure(self, chunks: Chunks) -> list[float]:
        """The factors s_t."""
        if self.rescale == "paper":
            return []
        norms = [(_norms(chunk.deltas), _norms(self._kept(chunk))) for chunk in chunks()]
        whole, kept = (torch.stack(column).sum(0) for column in zip(*norms, strict=True))
        return torch.where(kept > 0, whole / kept, 1.0).tolist()

    def _kept(self, chunk: Chunk) -> list[Tensor]:
        """m_t Δ_t."""
        return [delta.mul_(self.mask(t, chunk)) for t, delta in enumerate(chunk.deltas)]

    def combine(self, chunk: Chunk, measured: Any) -> Tensor:
        factors = measured or [1 / density for density in densities(self.density, len(chunk.models))]
        left = [delta.mul_(factor) for delta, factor in zip(self._kept(chunk), factors, strict=True)]
        if self.convention is None:
            return chunk.anchor + weighted_sum(chunk.weights, left)
        return chunk.anchor + elect_and_average(left, chunk.weights, self.convention)


def _norms(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack([t.abs().sum(dtype=torch.float64) for t in tensors])
