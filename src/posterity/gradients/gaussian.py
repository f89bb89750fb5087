"""Gaussians seen as mean and precision, whether the precision is a matrix or its diagonal."""

from __future__ import annotations

from torch import Tensor

from posterity.errors import expected
from posterity.families import ConditionalFamily, Coordinates, DiagonalGaussian, Family, FixedGaussian, Gaussian

AnyGaussian = Gaussian | DiagonalGaussian | FixedGaussian


def as_gaussian(q: Family | ConditionalFamily, what: str) -> AnyGaussian:
    """The same q if it is a Gaussian; otherwise an error that names the caller."""
    if not isinstance(q, Gaussian | DiagonalGaussian | FixedGaussian):
        raise expected(what, "a Gaussian q", type(q).__name__)
    return q


def times(matrix: Tensor, vector: Tensor, diagonal: bool) -> Tensor:
    """Matrix times vector, batched; the matrix may be known by its diagonal alone."""
    return matrix * vector if diagonal else (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def from_derivatives(mean: Tensor, gradient: Tensor, curvature: Tensor, diagonal: bool) -> Coordinates:
    """∇_μ E_q[ℓ] = (E[∇ℓ] − E[∇²ℓ]m, ½E[∇²ℓ]), by the theorems of Bonnet and Price."""
    return gradient - times(curvature, mean, diagonal), 0.5 * curvature


def to_derivatives(mean: Tensor, coordinates: Coordinates, diagonal: bool) -> tuple[Tensor, Tensor]:
    """The gradient and curvature from which `from_derivatives` makes these coordinates."""
    linear, quadratic = coordinates
    return linear + times(2.0 * quadratic, mean, diagonal), 2.0 * quadratic
