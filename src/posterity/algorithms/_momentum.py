"""Stochastic gradient descent with heavy-ball momentum in the natural parameters."""

from posterity.algorithms._base import Algorithm
from posterity.algorithms._sgd import sgd
from posterity.families import FixedGaussian


def momentum(lr: float = 0.1, beta: float = 0.9) -> Algorithm[FixedGaussian]:
    """Stochastic gradient descent with momentum.

    Posterior: q = N(m, I) with only the mean learnt.

    Heavy-ball momentum adds β(λ_t − λ_{t−1}) to the step that SGD takes, and λ = m:

        v ← β v + ĝ,   m ← m − ρ v.

    Args:
        lr: ρ.
        beta: β.
    """
    return sgd(lr).but(momentum=beta)
