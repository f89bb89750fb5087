"""Estimates of the Hessian ∇²ℓ(θ): itself, Gauss-Newton, squared gradients, or gradients alone (Stein)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad, jacrev

from posterity.errors import expected
from posterity.gradients.losses import DataLoss, Loss


class Curvature(ABC):
    """∇ℓ(θ) and a stand-in for ∇²ℓ(θ), at one point."""

    @abstractmethod
    def __call__(self, loss: Loss, theta: Tensor, pull: Tensor, diagonal: bool) -> tuple[Tensor, Tensor]:
        """Gradient and curvature.

        Args:
            loss: The total loss.
            theta: The point θ, (d,).
            pull: S(θ − m), how hard q pulls θ back to its mean, (d,).
            diagonal: Whether the diagonal of the curvature is enough.

        Returns:
            ∇ℓ(θ), (d,), and the curvature, (d, d) or its diagonal (d,).
        """


@dataclass(frozen=True)
class Hessian(Curvature):
    """No approximation: ∇²ℓ(θ)."""

    def __call__(self, loss: Loss, theta: Tensor, pull: Tensor, diagonal: bool) -> tuple[Tensor, Tensor]:
        return grad(loss)(theta), _exact(loss, theta, diagonal)


@dataclass(frozen=True)
class GaussNewton(Curvature):
    """∇²ℓ(θ) ≈ Σᵢ Jᵢᵀ Λᵢ Jᵢ + ∇²R(θ), with the outputs' Jacobian J and the curvature Λ of the likelihood."""

    def __call__(self, loss: Loss, theta: Tensor, pull: Tensor, diagonal: bool) -> tuple[Tensor, Tensor]:
        known = _known(loss, "the Gauss-Newton matrix")
        jacobian, inner = jacrev(known.outputs)(theta), known.output_curvature(theta)  # (B, K, d), (B, K, K)
        form = "bki,bkl,bli->i" if diagonal else "bki,bkl,blj->ij"
        matrix = known.weight * torch.einsum(form, jacobian, inner, jacobian)
        return grad(loss)(theta), matrix + _of_regulariser(known, theta, diagonal)


@dataclass(frozen=True)
class SquaredGradients(Curvature):
    """∇²ℓ(θ) ≈ g gᵀ with the gradient g of the whole loss; per example, Σᵢ gᵢ gᵢᵀ + ∇²R(θ).

    The first is the choice of RMSprop and Adam; the second, a Gauss-Newton matrix in expectation, that of OGN.
    """

    per_example: bool = False

    def __call__(self, loss: Loss, theta: Tensor, pull: Tensor, diagonal: bool) -> tuple[Tensor, Tensor]:
        gradient = grad(loss)(theta)
        if not self.per_example:
            return gradient, gradient**2 if diagonal else torch.outer(gradient, gradient)
        known = _known(loss, "per-example gradients")
        each = known.example_gradients(theta)  # (B, d)
        squares = known.weight * ((each**2).sum(0) if diagonal else each.mT @ each)
        return gradient, squares + _of_regulariser(known, theta, diagonal)


@dataclass(frozen=True)
class Stein(Curvature):
    """Gradients alone: E_q[∇²ℓ] = E_q[S(θ − m) ∇ℓ(θ)ᵀ], by Stein's lemma. Holds in expectation, not at a point."""

    def __call__(self, loss: Loss, theta: Tensor, pull: Tensor, diagonal: bool) -> tuple[Tensor, Tensor]:
        gradient = grad(loss)(theta)
        if diagonal:
            return gradient, pull * gradient
        product = torch.outer(pull, gradient)
        return gradient, 0.5 * (product + product.mT)


def _exact(loss: Loss, theta: Tensor, diagonal: bool) -> Tensor:
    matrix: Tensor = jacrev(grad(loss))(theta)
    return matrix.diagonal() if diagonal else matrix


def _of_regulariser(loss: DataLoss, theta: Tensor, diagonal: bool) -> Tensor:
    if loss.regulariser is None:
        return torch.zeros((), dtype=theta.dtype, device=theta.device)
    return _exact(loss.regulariser, theta, diagonal)


def _known(loss: Loss, what: str) -> DataLoss:
    if not isinstance(loss, DataLoss):
        raise expected("loss", f"a DataLoss (to compute {what} from its examples)", type(loss).__name__)
    return loss
