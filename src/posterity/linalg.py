"""Symmetric matrices: symmetrise, factor safely, retract to positive definite."""

from __future__ import annotations

import torch
from torch import Tensor

from posterity.errors import InvalidInput

DENSE_LIMIT = 20_000  # parameters; a dense float64 matrix of this size takes 3.2 GB


def symmetrise(matrix: Tensor) -> Tensor:
    """Average a matrix with its transpose (rounding breaks symmetry, factorisations need it)."""
    return 0.5 * (matrix + matrix.mT)


def cholesky(matrix: Tensor, what: str = "matrix") -> Tensor:
    """Cholesky factor of a positive-definite matrix, or an error that names its smallest eigenvalue."""
    if not torch.isfinite(matrix).all():
        raise InvalidInput(f"{what}: expected finite entries, got NaN or infinity")
    if matrix.dtype in (torch.float16, torch.bfloat16):
        raise InvalidInput(f"{what}: expected single or double precision, got {matrix.dtype}")
    factor, info = torch.linalg.cholesky_ex(symmetrise(matrix))
    if (info != 0).any():
        smallest = torch.linalg.eigvalsh(symmetrise(matrix)).amin().item()
        raise InvalidInput(f"{what}: expected a positive-definite matrix, got smallest eigenvalue {smallest:.3g}")
    return factor


def solve_psd(factor: Tensor, right: Tensor) -> Tensor:
    """Solve S x = right for a vector (or batch of vectors), given the Cholesky factor of S."""
    return torch.cholesky_solve(right.unsqueeze(-1), factor).squeeze(-1)


def inverse_psd(matrix: Tensor, what: str = "matrix") -> Tensor:
    """Inverse of a positive-definite matrix through its Cholesky factor, exactly symmetric."""
    return symmetrise(torch.cholesky_inverse(cholesky(matrix, what)))


def log_det_psd(factor: Tensor) -> Tensor:
    """Log-determinant of S from its Cholesky factor."""
    return 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def root_psd(matrix: Tensor) -> Tensor:
    """R with S = RRᵀ, which exists where S is singular and has no Cholesky factor."""
    values, vectors = torch.linalg.eigh(symmetrise(matrix))
    return vectors * values.clamp(min=0.0).sqrt().unsqueeze(-2)


def retract(precision: Tensor, direction: Tensor, step: float | Tensor) -> Tensor:
    """Move a precision along a symmetric direction and stay positive definite, for any step.

        S ← S + ρG + ½ρ² G S⁻¹ G  =  ½(S + UᵀU),   U = Lᵀ + ρ L⁻¹G,   S = LLᵀ

    The second form is a sum of a positive-definite and a positive-semidefinite matrix, which is why no step
    can leave the cone; it is also the numerically stable way to compute the first.

    Args:
        precision: Positive-definite matrices S (..., d, d).
        direction: Symmetric matrices G (..., d, d); they may be indefinite.
        step: Step size ρ.

    Returns:
        The retracted precisions (..., d, d).

    References:
        Lin, Schmidt and Khan, "Handling the positive-definite constraint in the Bayesian learning rule", 2020.
    """
    factor = cholesky(precision, "precision")
    upper = factor.mT + step * torch.linalg.solve_triangular(factor, symmetrise(direction), upper=False)
    return symmetrise(0.5 * (precision + upper.mT @ upper))


def retract_diagonal(precision: Tensor, direction: Tensor, step: float | Tensor) -> Tensor:
    """The element-wise form of `retract`: s ← s + ρg + ½ρ²g²/s, never below s/2."""
    return precision + step * direction + 0.5 * (step * direction) ** 2 / precision
