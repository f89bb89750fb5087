"""Gaussians with a full precision matrix, learnt or fixed."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from posterity.errors import require
from posterity.families._base import CoordinateFamily, Coordinates, Family
from posterity.families.checks import parameters, positive_definite
from posterity.families.special import LOG_2PI
from posterity.linalg import inverse_psd, log_det_psd, solve_psd, symmetrise


def _outer(vector: Tensor) -> Tensor:
    return vector.unsqueeze(-1) * vector.unsqueeze(-2)


class _FullPrecision:
    """What a Gaussian with a full precision matrix S = LLᵀ does, learnt or fixed."""

    def __init__(self, mean: Any, precision: Any) -> None:
        self._mean, matrix = parameters({"mean": (mean, 1), "precision": (precision, 2)})
        self.precision, self._factor = positive_definite("precision", matrix, self._mean.shape[-1])

    @classmethod
    def standard(cls, dim: int) -> Self:
        """Zero mean, unit covariance, float64."""
        return cls(torch.zeros(dim, dtype=torch.float64), torch.eye(dim, dtype=torch.float64))

    @cached_property
    def covariance(self) -> Tensor:
        """V = S⁻¹."""
        return symmetrise(torch.cholesky_inverse(self._factor))

    @property
    def mean(self) -> Tensor:
        return self._mean

    @property
    def variance(self) -> Tensor:
        return self.covariance.diagonal(dim1=-2, dim2=-1)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        m = self._mean
        noise = torch.randn(n, *m.shape, generator=generator, dtype=m.dtype, device=m.device)
        return m + torch.linalg.solve_triangular(self._factor.mT, noise.unsqueeze(-1), upper=True).squeeze(-1)

    # The generic ⟨λ, T⟩ − A loses the digits of mᵀSm; a mean far from zero keeps them in the centred forms below.

    def _log_density(self, theta: Tensor) -> Tensor:
        return -0.5 * self._squared_distance(theta) - self._log_normaliser()

    def _entropy(self) -> Tensor:
        return 0.5 * self._mean.shape[-1] + self._log_normaliser()

    def _divergence(self, other: Self) -> Tensor:
        ratio = torch.linalg.solve_triangular(self._factor, other._factor, upper=False)
        trace = ratio.square().sum((-2, -1)) - self._mean.shape[-1]  # tr S_p S_q⁻¹ − d
        spread = 0.5 * (trace + other._squared_distance(self._mean))
        return spread + other._log_normaliser() - self._log_normaliser()

    def to_torch(self) -> torch.distributions.MultivariateNormal:
        return torch.distributions.MultivariateNormal(self._mean, precision_matrix=self.precision)

    def _squared_distance(self, theta: Tensor) -> Tensor:
        """(θ − m)ᵀS(θ − m) = ‖Lᵀ(θ − m)‖²."""
        return (self._factor.mT @ (theta - self._mean).unsqueeze(-1)).squeeze(-1).square().sum(-1)

    def _precision_times_mean(self) -> Tensor:
        return (self.precision @ self._mean.unsqueeze(-1)).squeeze(-1)

    def _log_normaliser(self) -> Tensor:
        """(d/2) log 2π − ½ log det S."""
        return 0.5 * (self._mean.shape[-1] * LOG_2PI - log_det_psd(self._factor))


class Gaussian(_FullPrecision, CoordinateFamily):
    """N(m, S⁻¹) on vectors.

        T = (θ, θθᵀ),  λ = (Sm, −S/2),  μ = (m, S⁻¹ + mmᵀ),  A = ½mᵀSm − ½log det S + (d/2)log 2π

    Args:
        mean: m (..., d).
        precision: S (..., d, d), positive definite.

    Examples:
        >>> q = Gaussian([1.0, 2.0], [[2.0, 0.0], [0.0, 4.0]])
        >>> q.natural[0]
        tensor([2., 8.], dtype=torch.float64)
        >>> q.variance
        tensor([0.5000, 0.2500], dtype=torch.float64)
    """

    event_dims = (1, 2)
    theta_dims = 1

    @property
    def natural(self) -> Coordinates:
        return self._precision_times_mean(), -0.5 * self.precision

    @property
    def expectation(self) -> Coordinates:
        return self._mean, self.covariance + _outer(self._mean)

    @classmethod
    def from_natural(cls, natural: Coordinates) -> Self:
        linear, quadratic = cls._blocks("natural", natural)
        precision, factor = positive_definite("precision (−2 × natural[1])", -2.0 * quadratic, linear.shape[-1])
        return cls(solve_psd(factor, linear), precision)

    @classmethod
    def from_expectation(cls, expectation: Coordinates, start: Self | None = None) -> Self:
        mean, second = cls._blocks("expectation", expectation)
        what = "covariance (expectation[1] − mean meanᵀ)"
        covariance, _ = positive_definite(what, second - _outer(mean), mean.shape[-1])
        return cls(mean, inverse_psd(covariance, what))

    def log_partition(self) -> Tensor:
        return 0.5 * (self._mean * self._precision_times_mean()).sum(-1) + self._log_normaliser()

    def statistics(self, theta: Tensor) -> Coordinates:
        return theta, _outer(theta)


class FixedGaussian(_FullPrecision, Family):
    """N(m, S₀⁻¹) where only the mean is learnt.

        T = θ,  λ = S₀m,  μ = m,  A = ½λᵀS₀⁻¹λ,  log h = −½θᵀS₀θ + ½log det S₀ − (d/2)log 2π

    The base measure is not constant: ∇_μ E[log h] = −S₀m = −λ cancels the decay (1 − ρ)λ of the rule, which is why
    gradient descent has none.

    Args:
        mean: m (..., d).
        precision: S₀ (..., d, d), positive definite, the same for every member.
    """

    event_dims = (1,)
    theta_dims = 1

    @property
    def natural(self) -> Coordinates:
        return (self._precision_times_mean(),)

    @property
    def expectation(self) -> Coordinates:
        return (self._mean,)

    def with_natural(self, natural: Coordinates) -> Self:
        (linear,) = self._blocks("natural", natural)
        dim, entries = self._mean.shape[-1], linear.shape[-1]
        require(entries == dim, "natural[0]", f"{dim} entries, as many as the mean has", entries)
        return type(self)(solve_psd(self._factor, linear), self.precision)

    def with_expectation(self, expectation: Coordinates) -> Self:
        (mean,) = self._blocks("expectation", expectation)
        return type(self)(mean, self.precision)

    def log_partition(self) -> Tensor:
        return 0.5 * (self._mean * self._precision_times_mean()).sum(-1)

    def statistics(self, theta: Tensor) -> Coordinates:
        return (theta,)

    def log_base_measure(self, theta: Tensor) -> Tensor:
        quadratic = (theta * (self.precision @ theta.unsqueeze(-1)).squeeze(-1)).sum(-1)
        return -0.5 * quadratic - self._log_normaliser()

    def expected_log_base_measure(self) -> Tensor:
        return -self.log_partition() - 0.5 * self._mean.shape[-1] - self._log_normaliser()

    def base_measure_gradient(self) -> Coordinates:
        return (-self._precision_times_mean(),)

    def same_family(self, other: object) -> bool:
        if not (isinstance(other, FixedGaussian) and super().same_family(other)):
            return False
        return bool((self.precision == other.precision).all())
