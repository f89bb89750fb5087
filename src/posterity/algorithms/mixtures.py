"""Mixtures of Gaussians: several modes at once."""

from __future__ import annotations

from posterity.algorithms._base import Algorithm, mixture
from posterity.families import MixtureOfGaussians
from posterity.gradients import Delta, Quadrature
from posterity.rule import BayesianLearningRule


def multimodal(lr: float = 0.1, temperature: float = 1.0, retracted: bool = True) -> Algorithm[MixtureOfGaussians]:
    """Multimodal optimisation.

    Posterior: q = Σ_k π_k N(m_k, S_k⁻¹), natural gradients taken in the joint of θ and the component z.

    The entropy of a mixture has no closed form, so that the rule takes f = ℓ + τ log q into the expectation. The
    delta method evaluates it at the mean of each component. The plain step, K-th component as reference, is

        S_k ← S_k + ρ ∇²f(m_k),   m_k ← m_k − ρ S_k⁻¹ ∇f(m_k),   log π_k/π_K ← log π_k/π_K − ρ (f(m_k) − f(m_K)):

    a Newton method for each component, in which log q keeps the components apart. Where ∇²f is not positive the
    retraction keeps S_k so, and m_k moves by the old S_k.

    Args:
        lr: ρ.
        temperature: τ, the strength of the repulsion.
        retracted: Whether the precisions move by the retraction.
    """
    return Algorithm(mixture, BayesianLearningRule(Delta(), lr=lr, temperature=temperature, retracted=retracted))


def mixture_vi(lr: float = 0.1, nodes: int = 20, retracted: bool = True) -> Algorithm[MixtureOfGaussians]:
    """Non-conjugate variational inference with a mixture.

    Posterior: q = Σ_k π_k N(m_k, S_k⁻¹), natural gradients taken in the joint of θ and the component z.

    Multimodal optimisation without the delta method: f = ℓ + log q is averaged over each component. Plainly,

        S_k ← S_k + ρ E_k[∇²f],   m_k ← m_k − ρ S_k⁻¹ E_k[∇f],   log π_k/π_K ← log π_k/π_K − ρ (E_k[f] − E_K[f]),

    at rest where the free energy E_q[ℓ] − H(q) is stationary.

    Args:
        lr: ρ.
        nodes: Gauss-Hermite nodes in each dimension.
        retracted: Whether the precisions move by the retraction.
    """
    return multimodal(lr, retracted=retracted).but(gradient=Quadrature(nodes))
