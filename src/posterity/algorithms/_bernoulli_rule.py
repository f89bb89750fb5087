"""The rule for random signs, with exact expectations."""

from posterity.algorithms._base import Algorithm
from posterity.families import SignBernoulli
from posterity.gradients import Enumeration
from posterity.rule import BayesianLearningRule


def bernoulli_rule(lr: float = 0.1) -> Algorithm[SignBernoulli]:
    """The rule for random signs.

    Posterior: independent signs θ ∈ {−1, 1}ᵈ with λ = ½ log p/(1−p) and μ = tanh λ.

    The base measure is constant. The expectation is a finite sum, and nothing is approximated:

        λ ← (1 − ρ)λ − ρ ∇_μ E_q[ℓ],   ∂E_q[ℓ]/∂μⱼ = ½(E_q[ℓ | θⱼ = 1] − E_q[ℓ | θⱼ = −1]).

    Args:
        lr: ρ.
    """
    return Algorithm(SignBernoulli, BayesianLearningRule(Enumeration(), lr=lr))
