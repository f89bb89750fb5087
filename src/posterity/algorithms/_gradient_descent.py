"""Gradient descent: a Gaussian of fixed covariance and the delta method."""

from posterity.algorithms._base import Algorithm, fixed
from posterity.families import FixedGaussian
from posterity.gradients import Delta
from posterity.rule import BayesianLearningRule


def gradient_descent(lr: float = 0.1) -> Algorithm[FixedGaussian]:
    """Gradient descent.

    Posterior: q = N(m, I) with only the mean learnt, so that T = θ, λ = m and μ = m.

    Its base measure is not constant, log h = −½θᵀθ + const, and ∇_μ E_q[log h] = −m cancels the decay of the rule:
    λ ← (1 − ρ)λ − ρ∇_μ E_q[ℓ + log h] = m − ρ∇_m E_q[ℓ]. The delta method, E_q[ℓ] ≈ ℓ(m), leaves

        m ← m − ρ ∇ℓ(m).

    Args:
        lr: ρ.
    """
    return Algorithm(fixed, BayesianLearningRule(Delta(), lr=lr))
