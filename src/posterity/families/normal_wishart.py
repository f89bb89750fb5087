"""The normal-Wishart family: a vector and its precision matrix, the conjugate prior of a multivariate Gaussian."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from posterity.families._base import CoordinateFamily, Coordinates
from posterity.families.checks import between, parameters, positive_definite
from posterity.families.special import LOG_2PI
from posterity.families.wishart import (
    Wishart,
    degrees_from_moments,
    expected_log_det,
    sample_wishart_root,
    wishart_log_partition,
)
from posterity.linalg import cholesky, inverse_psd, solve_psd


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1)


class NormalWishart(CoordinateFamily):
    """Λ ~ Wishart(n, W), x | Λ ~ N(m, (κΛ)⁻¹), stacked as θ (..., d + 1, d): x on top of Λ.

        T = (log det Λ, Λ, Λx, xᵀΛx),  λ = ((n − d)/2, −½(W⁻¹ + κmmᵀ), κm, −κ/2),
        μ = (E log det Λ, nW, nWm, d/κ + n mᵀWm),  A = A_Wishart(n, W) − (d/2)log κ + (d/2)log 2π

    With d = 1 this is the normal-gamma family with a = n/2 and b = 1/2W.

    Args:
        location: m (..., d).
        strength: κ (...), positive: how many observations the location is worth.
        degrees: n (...), above d − 1.
        scale: W (..., d, d), positive definite.
    """

    event_dims = (0, 2, 1, 0)
    theta_dims = 2

    def __init__(self, location: Any, strength: Any, degrees: Any, scale: Any) -> None:
        self.location, self.strength, self.degrees, matrix = parameters(
            {"location": (location, 1), "strength": (strength, 0), "degrees": (degrees, 0), "scale": (scale, 2)}
        )
        self._dim = self.location.shape[-1]
        self.scale, self._factor = positive_definite("scale", matrix, self._dim)
        between("strength", self.strength, 0.0)
        between("degrees", self.degrees, self._dim - 1.0)

    @property
    def natural(self) -> Coordinates:
        pull = self.strength[..., None] * self.location
        inverse = inverse_psd(self.scale) + pull.unsqueeze(-1) * self.location.unsqueeze(-2)
        return 0.5 * (self.degrees - self._dim), -0.5 * inverse, pull, -0.5 * self.strength

    @property
    def expectation(self) -> Coordinates:
        precision = self.degrees[..., None, None] * self.scale
        weighted = _times(precision, self.location)
        quadratic = self._dim / self.strength + _dot(weighted, self.location)
        return expected_log_det(self.degrees, self._factor), precision, weighted, quadratic

    @classmethod
    def from_natural(cls, natural: Coordinates) -> Self:
        log_det, linear, pull, quadratic = cls._blocks("natural", natural)
        strength = -2.0 * quadratic
        between("strength (−2 × natural[3])", strength, 0.0)
        location = pull / strength[..., None]
        inverse, _ = positive_definite(
            "inverse scale (−2 × natural[1] − κmmᵀ)",
            -2.0 * linear - pull.unsqueeze(-1) * location.unsqueeze(-2),
            pull.shape[-1],
        )
        return cls(location, strength, 2.0 * log_det + pull.shape[-1], inverse_psd(inverse))

    @classmethod
    def from_expectation(cls, expectation: Coordinates, start: Self | None = None) -> Self:
        log_det, precision, weighted, quadratic = cls._blocks("expectation", expectation)
        degrees = degrees_from_moments(log_det, precision, None if start is None else start.degrees)
        location = solve_psd(cholesky(precision, "expectation[1]"), weighted)
        spread = quadratic - _dot(weighted, location)
        between("expectation[3] − expectation[2]ᵀ expectation[1]⁻¹ expectation[2]", spread, 0.0)
        return cls(location, weighted.shape[-1] / spread, degrees, precision / degrees[..., None, None])

    def log_partition(self) -> Tensor:
        return wishart_log_partition(self.degrees, self._factor) + 0.5 * self._dim * (LOG_2PI - self.strength.log())

    def statistics(self, theta: Tensor) -> Coordinates:
        x, precision = self.split(theta)
        weighted = _times(precision, x)
        return torch.logdet(precision), precision, weighted, _dot(x, weighted)

    def split(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """x (..., d) and Λ (..., d, d) of a stacked θ."""
        return theta[..., 0, :], theta[..., 1:, :]

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        root = sample_wishart_root(self.degrees, self._factor, n, generator)  # triangular: no need to factor Λ again
        noise = torch.randn(n, *self.location.shape, 1, generator=generator, dtype=root.dtype, device=root.device)
        offset = torch.linalg.solve_triangular(root.mT, noise, upper=True).squeeze(-1)
        x = self.location + offset / self.strength[..., None].sqrt()
        return torch.cat((x.unsqueeze(-2), root @ root.mT), -2)

    # As for Gaussians, a location far from zero keeps its digits in the centred forms.

    def _log_density(self, theta: Tensor) -> Tensor:
        x, precision = self.split(theta)
        away = x - self.location
        distance = self.strength * _dot(away, _times(precision, away))
        spread = self._dim * (self.strength.log() - LOG_2PI) + torch.logdet(precision)
        return self._of_precision.log_prob(precision) + 0.5 * (spread - distance)

    def _entropy(self) -> Tensor:
        spread = self._dim * (1.0 + LOG_2PI - self.strength.log()) - expected_log_det(self.degrees, self._factor)
        return self._of_precision.entropy() + 0.5 * spread

    def _divergence(self, other: Self) -> Tensor:
        ratio, away = other.strength / self.strength, self.location - other.location
        distance = other.strength * self.degrees * _dot(away, _times(self.scale, away))
        of_x = self._dim * (ratio - 1.0 - ratio.log()) + distance
        return self._of_precision.kl(other._of_precision) + 0.5 * of_x

    @property
    def _of_precision(self) -> Wishart:
        return Wishart(self.degrees, self.scale)

    @property
    def mean(self) -> Tensor:
        return torch.cat((self.location.unsqueeze(-2), self.degrees[..., None, None] * self.scale), -2)

    @property
    def variance(self) -> Tensor:
        """Var x = diag(W⁻¹)/κ(n − d − 1), infinite for n ≤ d + 1, and Var Λ_ij = n(W_ij² + W_ii W_jj)."""
        diagonal = self.scale.diagonal(dim1=-2, dim2=-1)
        of_precision = self.degrees[..., None, None] * (self.scale**2 + diagonal.unsqueeze(-1) * diagonal.unsqueeze(-2))
        free = (self.degrees - self._dim - 1.0)[..., None]
        inverse = inverse_psd(self.scale).diagonal(dim1=-2, dim2=-1)
        of_x = torch.where(free > 0.0, inverse / (self.strength[..., None] * free), torch.inf)
        return torch.cat((of_x.unsqueeze(-2), of_precision), -2)
