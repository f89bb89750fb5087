"""Gamma, inverse gamma, and the gamma of mean one that mixes scales."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from posterity.families._base import CoordinateFamily, Coordinates
from posterity.families._inverse import shape_from_gap
from posterity.families.checks import between, parameters
from posterity.families.special import digamma, gamma_divergence, gamma_entropy


def standard_gamma(shape: Tensor, n: int, generator: torch.Generator | None = None) -> Tensor:
    """n draws from Gamma(shape, 1), (n, *shape), never exactly zero (a tiny shape underflows otherwise)."""
    draws = torch._standard_gamma(shape.expand(n, *shape.shape), generator=generator)
    return draws.clamp(min=torch.finfo(draws.dtype).tiny)


def log_standard_gamma(shape: Tensor, n: int, generator: torch.Generator | None = None) -> Tensor:
    """Logarithms of n draws from Gamma(shape, 1), right where the draws themselves underflow.

    log Gamma(a) = log Gamma(a + 1) + log(u)/a,   u uniform

    """
    draws = standard_gamma(shape + 1.0, n, generator)
    uniform = torch.rand(draws.shape, generator=generator, dtype=draws.dtype, device=draws.device)
    return draws.log() + torch.log1p(-uniform) / shape


class Gamma(CoordinateFamily):
    """Gamma(a, b) on positive numbers.

        T = (log θ, θ),  λ = (a − 1, −b),  μ = (ψ(a) − log b, a/b),  A = log Γ(a) − a log b

    Args:
        shape: a (...), positive.
        rate: b (...), positive.

    Examples:
        >>> q = Gamma(3.0, 2.0)
        >>> q.mean
        tensor(1.5000, dtype=torch.float64)
        >>> round(float(Gamma.from_expectation(q.expectation).rate), 12)
        2.0
    """

    event_dims = (0, 0)

    def __init__(self, shape: Any, rate: Any) -> None:
        self.shape, self.rate = parameters({"shape": (shape, 0), "rate": (rate, 0)})
        between("shape", self.shape, 0.0)
        between("rate", self.rate, 0.0)

    @property
    def natural(self) -> Coordinates:
        return self.shape - 1.0, -self.rate

    @property
    def expectation(self) -> Coordinates:
        return digamma(self.shape) - self.rate.log(), self.mean

    @classmethod
    def from_natural(cls, natural: Coordinates) -> Self:
        shape_minus_one, minus_rate = cls._blocks("natural", natural)
        return cls(shape_minus_one + 1.0, -minus_rate)

    @classmethod
    def from_expectation(cls, expectation: Coordinates, start: Self | None = None) -> Self:
        mean_log, mean = cls._blocks("expectation", expectation)
        between("expectation[1]", mean, 0.0)
        between("gap log expectation[1] − expectation[0]", mean.log() - mean_log, 0.0)
        shape = shape_from_gap(mean.log() - mean_log, None if start is None else start.shape)
        return cls(shape, shape / mean)

    def log_partition(self) -> Tensor:
        return torch.lgamma(self.shape) - self.shape * self.rate.log()

    def _entropy(self) -> Tensor:
        return gamma_entropy(self.shape) - self.rate.log()

    def _divergence(self, other: Self) -> Tensor:
        return gamma_divergence(self.shape, other.shape, self.mean / other.mean)

    def statistics(self, theta: Tensor) -> Coordinates:
        return theta.log(), theta

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        return standard_gamma(self.shape, n, generator) / self.rate

    @property
    def mean(self) -> Tensor:
        return self.shape / self.rate

    @property
    def variance(self) -> Tensor:
        return self.shape / self.rate**2

    def to_torch(self) -> torch.distributions.Gamma:
        return torch.distributions.Gamma(self.shape, self.rate)


class InverseGamma(CoordinateFamily):
    """1/θ ~ Gamma(a, b).

        T = (log θ, 1/θ),  λ = (−a − 1, −b),  μ = (log b − ψ(a), a/b),  A = log Γ(a) − a log b

    Args:
        shape: a (...), positive.
        scale: b (...), positive.
    """

    event_dims = (0, 0)

    def __init__(self, shape: Any, scale: Any) -> None:
        self.shape, self.scale = parameters({"shape": (shape, 0), "scale": (scale, 0)})
        between("shape", self.shape, 0.0)
        between("scale", self.scale, 0.0)

    @property
    def natural(self) -> Coordinates:
        return -self.shape - 1.0, -self.scale

    @property
    def expectation(self) -> Coordinates:
        return self.scale.log() - digamma(self.shape), self.shape / self.scale

    @classmethod
    def from_natural(cls, natural: Coordinates) -> Self:
        minus_shape_minus_one, minus_scale = cls._blocks("natural", natural)
        return cls(-minus_shape_minus_one - 1.0, -minus_scale)

    @classmethod
    def from_expectation(cls, expectation: Coordinates, start: Self | None = None) -> Self:
        mean_log, mean_inverse = cls._blocks("expectation", expectation)
        between("expectation[1]", mean_inverse, 0.0)
        between("gap log expectation[1] + expectation[0]", mean_inverse.log() + mean_log, 0.0)
        shape = shape_from_gap(mean_inverse.log() + mean_log, None if start is None else start.shape)
        return cls(shape, shape / mean_inverse)

    def log_partition(self) -> Tensor:
        return torch.lgamma(self.shape) - self.shape * self.scale.log()

    def _entropy(self) -> Tensor:
        return gamma_entropy(self.shape) + self.scale.log() - 2.0 * digamma(self.shape)

    def _divergence(self, other: Self) -> Tensor:
        return gamma_divergence(self.shape, other.shape, self.expectation[1] / other.expectation[1])

    def statistics(self, theta: Tensor) -> Coordinates:
        return theta.log(), 1.0 / theta

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        return self.scale / standard_gamma(self.shape, n, generator)

    @property
    def mean(self) -> Tensor:
        return torch.where(self.shape > 1.0, self.scale / (self.shape - 1.0), torch.inf)

    @property
    def variance(self) -> Tensor:
        return torch.where(self.shape > 2.0, self.mean**2 / (self.shape - 2.0), torch.inf)

    def to_torch(self) -> torch.distributions.InverseGamma:
        return torch.distributions.InverseGamma(self.shape, self.scale)


class UnitGamma(CoordinateFamily):
    """Gamma(a, a): positive scales around one, what a Student-t mixes over.

        T = log θ − θ,  λ = a − 1,  μ = ψ(a) − log a − 1,  A = log Γ(a) − a log a,  log h = −θ

    The base measure is not constant, but E[log h] = −1 for every member, so ∇_μH = −λ all the same.

    Args:
        shape: a (...), positive; the larger, the closer to one.
    """

    event_dims = (0,)

    def __init__(self, shape: Any) -> None:
        (self.shape,) = parameters({"shape": (shape, 0)})
        between("shape", self.shape, 0.0)

    @property
    def natural(self) -> Coordinates:
        return (self.shape - 1.0,)

    @property
    def expectation(self) -> Coordinates:
        return (digamma(self.shape) - self.shape.log() - 1.0,)

    @classmethod
    def from_natural(cls, natural: Coordinates) -> Self:
        return cls(cls._blocks("natural", natural)[0] + 1.0)

    @classmethod
    def from_expectation(cls, expectation: Coordinates, start: Self | None = None) -> Self:
        (mean,) = cls._blocks("expectation", expectation)
        between("expectation[0]", mean, -torch.inf, -1.0)
        return cls(shape_from_gap(-1.0 - mean, None if start is None else start.shape))

    def log_partition(self) -> Tensor:
        return torch.lgamma(self.shape) - self.shape * self.shape.log()

    def _entropy(self) -> Tensor:
        return gamma_entropy(self.shape) - self.shape.log()

    def _divergence(self, other: Self) -> Tensor:
        return gamma_divergence(self.shape, other.shape, torch.ones_like(self.shape))

    def statistics(self, theta: Tensor) -> Coordinates:
        return (theta.log() - theta,)

    def log_base_measure(self, theta: Tensor) -> Tensor:
        return -theta

    def expected_log_base_measure(self) -> Tensor:
        return -torch.ones_like(self.shape)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        return standard_gamma(self.shape, n, generator) / self.shape

    @property
    def mean(self) -> Tensor:
        return torch.ones_like(self.shape)

    @property
    def variance(self) -> Tensor:
        return 1.0 / self.shape

    def to_torch(self) -> torch.distributions.Gamma:
        return torch.distributions.Gamma(self.shape, self.shape)
