"""Counts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from posterity.errors import require
from posterity.likelihoods._base import Likelihood, range_of
from posterity.likelihoods._mixtures import smallest


@dataclass(frozen=True)
class PoissonLikelihood(Likelihood):
    """Counts y ∈ {0, 1, ...} with log-rate f: p(y | f) = Poisson(e^f)."""

    name = "poisson"

    def loss(self, f: Tensor, y: Tensor) -> Tensor:
        y = y.to(torch.promote_types(f.dtype, y.dtype))
        return (f.exp() - y * f + torch.lgamma(y + 1.0)).sum(-1)

    def residual(self, f: Tensor, y: Tensor) -> Tensor:
        return f.exp() - y.to(torch.promote_types(f.dtype, y.dtype))

    def curvature(self, f: Tensor) -> Tensor:
        return torch.diag_embed(f.exp())

    def curvature_root(self, f: Tensor) -> Tensor:
        return torch.diag_embed((0.5 * f).exp())

    def noise_std(self, mean: Tensor) -> Tensor:
        return mean.sqrt()

    def quantile(self, f: Tensor, q: Tensor) -> Tensor:
        # P(Y ≤ y) = Q(y + 1, rate) is continuous and increasing in real y > −1; Markov's inequality bounds its
        # quantile.
        rate = f.exp()
        low, high = torch.full_like(rate[0], -1.0), rate.mean(0) / (1 - q) + 1.0
        return smallest(lambda y: torch.special.gammaincc(y + 1.0, rate).mean(0), low, high, q)

    def mean(self, f: Tensor) -> Tensor:
        return f.exp()

    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return torch.poisson(f.exp(), generator=generator)

    def check(self, f: Tensor, y: Tensor) -> None:
        require(f.shape == y.shape, "counts", f"shape {tuple(f.shape)} like the log-rates", tuple(y.shape))
        whole = (y >= 0) & (y % 1 == 0)
        require(bool(whole.all()), "counts", "whole numbers >= 0", range_of(y))
