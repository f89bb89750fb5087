"""The Wishart family on positive-definite matrices."""

from __future__ import annotations

import math
from typing import Any, Self

import torch
from torch import Tensor

from posterity.families._base import CoordinateFamily, Coordinates
from posterity.families._inverse import shape_from_gap
from posterity.families.checks import between, parameters, positive_definite
from posterity.families.gamma import standard_gamma
from posterity.families.special import digamma
from posterity.linalg import inverse_psd, log_det_psd, symmetrise

LOG_2 = math.log(2.0)


def expected_log_det(degrees: Tensor, factor: Tensor) -> Tensor:
    """E[log det Θ] = Σ_{i<d} ψ((n − i)/2) + d log 2 + log det W, with W = LLᵀ."""
    dim = factor.shape[-1]
    steps = torch.arange(dim, dtype=degrees.dtype, device=degrees.device)
    return digamma(0.5 * (degrees.unsqueeze(-1) - steps)).sum(-1) + dim * LOG_2 + log_det_psd(factor)


def wishart_log_partition(degrees: Tensor, factor: Tensor) -> Tensor:
    """½n log det W + ½nd log 2 + log Γ_d(n/2), with W = LLᵀ."""
    dim = factor.shape[-1]
    return 0.5 * degrees * (log_det_psd(factor) + dim * LOG_2) + torch.mvlgamma(0.5 * degrees, dim)


def degrees_from_moments(log_det: Tensor, mean: Tensor, start: Tensor | None) -> Tensor:
    """The degrees of freedom n with E[log det Θ] and E[Θ] = nW as given, from the gap log det E[Θ] − E[log det Θ]."""
    _, factor = positive_definite("expectation[1]", mean)
    gap = log_det_psd(factor) - log_det
    between("gap log det expectation[1] − expectation[0]", gap, 0.0)
    return 2.0 * shape_from_gap(gap, None if start is None else 0.5 * start, mean.shape[-1])


def sample_wishart_root(degrees: Tensor, factor: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
    """Bartlett: Θ = RRᵀ, R = LA, A lower triangular, A_ii² ~ χ²(n − i), A_ij standard normal below."""
    dim = factor.shape[-1]
    steps = torch.arange(dim, dtype=degrees.dtype, device=degrees.device)
    chi_squared = 2.0 * standard_gamma(0.5 * (degrees.unsqueeze(-1) - steps), n, generator)
    below = torch.randn(n, *factor.shape, generator=generator, dtype=factor.dtype, device=factor.device).tril(-1)
    return factor @ (below + torch.diag_embed(chi_squared.sqrt()))


class Wishart(CoordinateFamily):
    """Wishart(n, W) on d × d positive-definite matrices, E[Θ] = nW.

        T = (log det Θ, Θ),  λ = ((n − d − 1)/2, −W⁻¹/2),  μ = (E log det Θ, nW),
        A = ½n log det W + ½nd log 2 + log Γ_d(n/2)

    Args:
        degrees: n (...), above d − 1.
        scale: W (..., d, d), positive definite.

    Examples:
        >>> q = Wishart(4.0, [[1.0, 0.5], [0.5, 1.0]])
        >>> round(float(Wishart.from_expectation(q.expectation).degrees), 12)
        4.0
    """

    event_dims = (0, 2)
    theta_dims = 2

    def __init__(self, degrees: Any, scale: Any) -> None:
        self.degrees, matrix = parameters({"degrees": (degrees, 0), "scale": (scale, 2)})
        self.scale, self._factor = positive_definite("scale", matrix)
        between("degrees", self.degrees, self.scale.shape[-1] - 1.0)

    @property
    def natural(self) -> Coordinates:
        inverse = symmetrise(torch.cholesky_inverse(self._factor))
        return 0.5 * (self.degrees - self.scale.shape[-1] - 1.0), -0.5 * inverse

    @property
    def expectation(self) -> Coordinates:
        return expected_log_det(self.degrees, self._factor), self.mean

    @classmethod
    def from_natural(cls, natural: Coordinates) -> Self:
        log_det, linear = cls._blocks("natural", natural)
        inverse, _ = positive_definite("inverse scale (−2 × natural[1])", -2.0 * linear)
        return cls(2.0 * log_det + linear.shape[-1] + 1.0, inverse_psd(inverse))

    @classmethod
    def from_expectation(cls, expectation: Coordinates, start: Self | None = None) -> Self:
        log_det, mean = cls._blocks("expectation", expectation)
        degrees = degrees_from_moments(log_det, mean, None if start is None else start.degrees)
        return cls(degrees, mean / degrees[..., None, None])

    def _in_double(self) -> Self:
        if self.scale.dtype == torch.float64:
            return self
        return type(self)(self.degrees.double(), self.scale.double())  # the rounding of a factor counts n times

    def log_partition(self) -> Tensor:
        return wishart_log_partition(self.degrees, self._factor)

    def statistics(self, theta: Tensor) -> Coordinates:
        log_det, (_, failed) = torch.logdet(theta), torch.linalg.cholesky_ex(theta)
        # Two negative eigenvalues have a positive product, too.
        return torch.where((failed == 0) | log_det.isinf(), log_det, torch.nan), theta

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        root = sample_wishart_root(self.degrees, self._factor, n, generator)
        return root @ root.mT

    @property
    def mean(self) -> Tensor:
        return self.degrees[..., None, None] * self.scale

    @property
    def variance(self) -> Tensor:
        diagonal = self.scale.diagonal(dim1=-2, dim2=-1)
        return self.degrees[..., None, None] * (self.scale**2 + diagonal.unsqueeze(-1) * diagonal.unsqueeze(-2))

    def to_torch(self) -> torch.distributions.Wishart:
        return torch.distributions.Wishart(self.degrees, covariance_matrix=self.scale)
