"""Gaussian variational inference: exact expectations, and Gauss-Newton approximations of them."""

from __future__ import annotations

import torch

from posterity.algorithms._base import Algorithm, diagonal, unit
from posterity.families import DiagonalGaussian, Gaussian
from posterity.gradients import Delta, MonteCarlo, Quadrature, SquaredGradients
from posterity.rule import BayesianLearningRule


def gaussian_vi(prior: Gaussian, lr: float = 0.5, nodes: int = 20) -> Algorithm[Gaussian]:
    """Gaussian variational inference (variational online Newton).

    Posterior: q = N(m, S⁻¹) with a full precision; prior N(m₀, S₀⁻¹).

    The theorems of Bonnet and Price turn ∇_μ E_q[ℓ] into expected gradients and Hessians; Gauss-Hermite quadrature
    computes them to the last digits wanted. With ℓ the loss of the data,

        S ← (1 − ρ)S + ρ(E_q[∇²ℓ] + S₀),   m ← m − ρ S⁻¹ (E_q[∇ℓ] + S₀(m − m₀)),

    at rest where the evidence lower bound is stationary.

    Args:
        prior: N(m₀, S₀⁻¹).
        lr: ρ.
        nodes: Quadrature nodes in each dimension; a `LinearLoss` needs one dimension only.
    """
    return Algorithm(unit, BayesianLearningRule(Quadrature(nodes), lr=lr, prior=prior))


def ogn(lr: float = 0.1, precision: float = 1.0) -> Algorithm[DiagonalGaussian]:
    """OGN, online Gauss-Newton.

    Posterior: q = N(m, diag(s)⁻¹).

    The delta method evaluates at the mean, and per-example squared gradients gᵢ² stand for the Hessian of the data:
    unlike the square ĝ² of their sum they grow with the loss, so that no square root is needed. With the Hessian δ
    of the regulariser,

        s ← (1 − ρ)s + ρ(Σᵢ gᵢ² + δ),   m ← m − ρ ĝ / s.

    Args:
        lr: ρ.
        precision: s at the start.
    """
    return Algorithm(diagonal(precision), BayesianLearningRule(Delta(SquaredGradients(per_example=True)), lr=lr))


def vogn(
    lr: float = 0.1, precision: float = 1.0, samples: int = 1, generator: torch.Generator | None = None
) -> Algorithm[DiagonalGaussian]:
    """VOGN, variational online Gauss-Newton.

    Posterior: q = N(m, diag(s)⁻¹).

    OGN without the delta method: the gradients are taken at samples θ ~ q,

        s ← (1 − ρ)s + ρ(E_q[Σᵢ gᵢ²] + δ),   m ← m − ρ E_q[∇ℓ] / s.

    Args:
        lr: ρ.
        precision: s at the start.
        samples: Number of samples for E_q.
        generator: Source of randomness; torch's own when left out.
    """
    return ogn(lr, precision).but(gradient=MonteCarlo(samples, SquaredGradients(per_example=True), generator))
