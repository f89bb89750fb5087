"""Gaussian variational inference: the rule without any approximation of the expectations."""

from posterity.algorithms._base import Algorithm, unit
from posterity.families import Gaussian
from posterity.gradients import Quadrature
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
