"""Regression with Gaussian noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from posterity.errors import require_positive
from posterity.likelihoods._base import Likelihood, check_numbers
from posterity.likelihoods._mixtures import between


@dataclass(frozen=True)
class GaussianLikelihood(Likelihood):
    """Regression: y ~ N(f, 1/precision), the same noise for every output."""

    precision: float = 1.0
    name = "gaussian"

    def __post_init__(self) -> None:
        require_positive("precision", self.precision)

    def loss(self, f: Tensor, y: Tensor) -> Tensor:
        constant = 0.5 * math.log(2 * math.pi / self.precision)
        return (0.5 * self.precision * (f - y) ** 2 + constant).sum(-1)

    def residual(self, f: Tensor, y: Tensor) -> Tensor:
        return self.precision * (f - y)

    def curvature(self, f: Tensor) -> Tensor:
        return self.precision * torch.eye(f.shape[-1], dtype=f.dtype, device=f.device).expand(*f.shape, f.shape[-1])

    def curvature_root(self, f: Tensor) -> Tensor:
        return self.curvature(f) / math.sqrt(self.precision)

    @property
    def noise_precision(self) -> float:
        return self.precision

    def with_noise_precision(self, precision: float) -> GaussianLikelihood:
        return replace(self, precision=precision)

    def noise_std(self, mean: Tensor) -> Tensor:
        return torch.full_like(mean, self.precision**-0.5)

    def quantile(self, f: Tensor, q: Tensor) -> Tensor:
        # It lies between the smallest and the largest quantile of the single Gaussians.
        sigma = self.precision**-0.5
        shift = sigma * torch.special.ndtri(q)
        low, high = f.amin(0) + shift, f.amax(0) + shift
        return between(lambda y: torch.special.ndtr((y - f) / sigma).mean(0), low, high, q)

    def outcomes(self, f: Tensor, variance: Tensor) -> Sequence[tuple[Tensor, Tensor]]:
        # The 2K points f ± √K S^½ u_k, S = V + noise, have the mean and covariance of the Gaussian predictive, and so
        # the right expectation of whatever is quadratic in y.
        count, k = f.shape
        root = torch.linalg.cholesky(variance + torch.eye(k).to(variance) / self.precision) * math.sqrt(k)
        weight = torch.full((count,), 0.5 / k, dtype=f.dtype, device=f.device)
        return [(weight, f + s * root[:, :, i]) for i in range(k) for s in (1.0, -1.0)]

    def mean(self, f: Tensor) -> Tensor:
        return f

    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:
        noise = torch.randn(f.shape, dtype=f.dtype, device=f.device, generator=generator)
        return f + noise / math.sqrt(self.precision)

    def check(self, f: Tensor, y: Tensor) -> None:
        check_numbers(f, y)

    def settings(self) -> dict[str, Any]:
        return {"name": self.name, "precision": float(self.precision)}
