"""The Gaussian of independent coordinates."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from posterity.errors import require
from posterity.families._base import CoordinateFamily, Coordinates
from posterity.families.checks import between, parameters
from posterity.families.special import LOG_2PI


class DiagonalGaussian(CoordinateFamily):
    """N(m, diag(s)⁻¹) on vectors.

        T = (θ, θ²),  λ = (s∘m, −s/2),  μ = (m, 1/s + m²),  A = Σ ½s m² − ½log s + ½log 2π

    Args:
        mean: m (..., d).
        precision: s (..., d), positive.
    """

    event_dims = (1, 1)
    theta_dims = 1

    def __init__(self, mean: Any, precision: Any) -> None:
        self._mean, self.precision = parameters({"mean": (mean, 1), "precision": (precision, 1)})
        dim, entries = self._mean.shape[-1], self.precision.shape[-1]
        require(entries == dim, "precision", f"{dim} entries, as many as the mean has", entries)
        between("precision", self.precision, 0.0)

    @classmethod
    def standard(cls, dim: int) -> Self:
        """Zero mean, unit variance, float64."""
        return cls(torch.zeros(dim, dtype=torch.float64), torch.ones(dim, dtype=torch.float64))

    @property
    def mean(self) -> Tensor:
        return self._mean

    @property
    def variance(self) -> Tensor:
        return 1.0 / self.precision

    @property
    def natural(self) -> Coordinates:
        return self.precision * self._mean, -0.5 * self.precision

    @property
    def expectation(self) -> Coordinates:
        return self._mean, self.variance + self._mean**2

    @classmethod
    def from_natural(cls, natural: Coordinates) -> Self:
        linear, quadratic = cls._blocks("natural", natural)
        between("precision (−2 × natural[1])", -2.0 * quadratic, 0.0)
        return cls(linear / (-2.0 * quadratic), -2.0 * quadratic)

    @classmethod
    def from_expectation(cls, expectation: Coordinates, start: Self | None = None) -> Self:
        mean, second = cls._blocks("expectation", expectation)
        between("variance (expectation[1] − mean²)", second - mean**2, 0.0)
        return cls(mean, 1.0 / (second - mean**2))

    def log_partition(self) -> Tensor:
        return 0.5 * (self.precision * self._mean**2 - self.precision.log() + LOG_2PI).sum(-1)

    def statistics(self, theta: Tensor) -> Coordinates:
        return theta, theta**2

    def _log_density(self, theta: Tensor) -> Tensor:
        return 0.5 * (self.precision.log() - LOG_2PI - self.precision * (theta - self._mean) ** 2).sum(-1)

    def _entropy(self) -> Tensor:
        return 0.5 * (1.0 + LOG_2PI - self.precision.log()).sum(-1)

    def _divergence(self, other: Self) -> Tensor:
        ratio = other.precision / self.precision
        return 0.5 * (ratio - 1.0 - ratio.log() + other.precision * (self._mean - other.mean) ** 2).sum(-1)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        m = self._mean
        noise = torch.randn(n, *m.shape, generator=generator, dtype=m.dtype, device=m.device)
        return m + noise / self.precision.sqrt()

    def to_torch(self) -> torch.distributions.Distribution:
        return torch.distributions.Independent(torch.distributions.Normal(self._mean, self.variance.sqrt()), 1)
