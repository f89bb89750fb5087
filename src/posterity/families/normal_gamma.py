"""The normal-gamma family: a number and its precision, the conjugate prior of a Gaussian."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from posterity.families._base import CoordinateFamily, Coordinates
from posterity.families._inverse import shape_from_gap
from posterity.families.checks import between, parameters
from posterity.families.gamma import Gamma, standard_gamma
from posterity.families.special import LOG_2PI, digamma


class NormalGamma(CoordinateFamily):
    """τ ~ Gamma(a, b), x | τ ~ N(m, 1/κτ), stacked as θ = (x, τ) (..., 2).

        T = (log τ, τ, τx, τx²),  λ = (a − ½, −b − ½κm², κm, −κ/2),
        μ = (ψ(a) − log b, a/b, ma/b, 1/κ + m²a/b),  A = log Γ(a) − a log b − ½log κ + ½log 2π

    Args:
        location: m (...).
        strength: κ (...), positive: how many observations the location is worth.
        shape: a (...), positive.
        rate: b (...), positive.
    """

    event_dims = (0, 0, 0, 0)
    theta_dims = 1

    def __init__(self, location: Any, strength: Any, shape: Any, rate: Any) -> None:
        self.location, self.strength, self.shape, self.rate = parameters(
            {"location": (location, 0), "strength": (strength, 0), "shape": (shape, 0), "rate": (rate, 0)}
        )
        between("strength", self.strength, 0.0)
        between("shape", self.shape, 0.0)
        between("rate", self.rate, 0.0)

    @property
    def natural(self) -> Coordinates:
        pull = self.strength * self.location
        return self.shape - 0.5, -self.rate - 0.5 * pull * self.location, pull, -0.5 * self.strength

    @property
    def expectation(self) -> Coordinates:
        precision = self.shape / self.rate
        weighted = precision * self.location
        log_precision = digamma(self.shape) - self.rate.log()
        return log_precision, precision, weighted, 1.0 / self.strength + weighted * self.location

    @classmethod
    def from_natural(cls, natural: Coordinates) -> Self:
        log_block, linear, pull, quadratic = cls._blocks("natural", natural)
        strength = -2.0 * quadratic
        between("strength (−2 × natural[3])", strength, 0.0)
        return cls(pull / strength, strength, log_block + 0.5, -linear - 0.5 * pull**2 / strength)

    @classmethod
    def from_expectation(cls, expectation: Coordinates, start: Self | None = None) -> Self:
        log_precision, precision, weighted, quadratic = cls._blocks("expectation", expectation)
        between("expectation[1]", precision, 0.0)
        location, gap = weighted / precision, precision.log() - log_precision
        spread = quadratic - weighted * location
        between("gap log expectation[1] − expectation[0]", gap, 0.0)
        between("expectation[3] − expectation[2]²/expectation[1]", spread, 0.0)
        shape = shape_from_gap(gap, None if start is None else start.shape)
        return cls(location, 1.0 / spread, shape, shape / precision)

    def log_partition(self) -> Tensor:
        gamma = torch.lgamma(self.shape) - self.shape * self.rate.log()
        return gamma - 0.5 * self.strength.log() + 0.5 * LOG_2PI

    def statistics(self, theta: Tensor) -> Coordinates:
        x, precision = theta.unbind(-1)
        return precision.log(), precision, precision * x, precision * x**2

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        precision = standard_gamma(self.shape, n, generator) / self.rate
        noise = torch.randn(
            precision.shape, generator=generator, dtype=self.location.dtype, device=self.location.device
        )
        return torch.stack((self.location + noise / (self.strength * precision).sqrt(), precision), -1)

    # As for Gaussians, a location far from zero keeps its digits in the centred forms.

    def _log_density(self, theta: Tensor) -> Tensor:
        x, precision = theta.unbind(-1)
        weight = self.strength * precision
        of_x = 0.5 * (weight.log() - LOG_2PI - weight * (x - self.location) ** 2)
        return self._of_precision.log_prob(precision) + of_x

    def _entropy(self) -> Tensor:
        log_weight = self.strength.log() + self.expectation[0]
        return self._of_precision.entropy() + 0.5 * (1.0 + LOG_2PI - log_weight)

    def _divergence(self, other: Self) -> Tensor:
        ratio = other.strength / self.strength
        distance = other.strength * (self.shape / self.rate) * (self.location - other.location) ** 2
        of_x = 0.5 * (ratio - 1.0 - ratio.log() + distance)
        return self._of_precision.kl(other._of_precision) + of_x

    @property
    def _of_precision(self) -> Gamma:
        return Gamma(self.shape, self.rate)

    @property
    def mean(self) -> Tensor:
        return torch.stack((self.location, self.shape / self.rate), -1)

    @property
    def variance(self) -> Tensor:
        """Var x = b/κ(a − 1), infinite for a ≤ 1, and Var τ = a/b²."""
        of_x = torch.where(self.shape > 1.0, self.rate / (self.strength * (self.shape - 1.0)), torch.inf)
        return torch.stack((of_x, self.shape / self.rate**2), -1)
