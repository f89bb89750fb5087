"""Stochastic gradient descent: gradient descent on minibatches."""

from posterity.algorithms._base import Algorithm
from posterity.algorithms._gradient_descent import gradient_descent
from posterity.families import FixedGaussian


def sgd(lr: float = 0.1) -> Algorithm[FixedGaussian]:
    """Stochastic gradient descent.

    Posterior: q = N(m, I) with only the mean learnt.

    Gradient descent, where each step sees the loss through another minibatch (`DataLoss.minibatches`, which scales
    the examples by N/B and leaves the regulariser alone). With the unbiased gradient ĝ ≈ ∇ℓ(m),

        m ← m − ρ ĝ.

    Args:
        lr: ρ.
    """
    return gradient_descent(lr)
