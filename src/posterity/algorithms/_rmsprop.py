"""RMSprop: a diagonal Gaussian, squared gradients, a slow scale and a square root."""

from posterity.algorithms._base import Algorithm, vague
from posterity.families import DiagonalGaussian
from posterity.gradients import Delta, SquaredGradients
from posterity.rule import BayesianLearningRule


def rmsprop(lr: float = 0.01, beta: float = 0.99, eps: float = 1e-8) -> Algorithm[DiagonalGaussian]:
    """RMSprop.

    Posterior: q = N(m, diag(s)⁻¹), which starts without any precision.

    The rule reads s ← (1 − ρ)s + ρE_q[diag ∇²ℓ], m ← m − ρE_q[∇ℓ]/s. The delta method evaluates at the mean; ĝ² of
    the (minibatch) gradient stands for the Hessian; the scale moves by a slower step, 1 − β; and the square root
    makes up for ĝ² growing with the square of the loss where a Hessian grows with the loss:

        s ← β s + (1 − β) ĝ²,   m ← m − ρ ĝ / (√s + ε).

    Args:
        lr: ρ, of the mean.
        beta: β.
        eps: ε.
    """
    gradient = Delta(SquaredGradients())
    return Algorithm(vague, BayesianLearningRule(gradient, lr=lr, slow_scale=beta, square_root=eps))
