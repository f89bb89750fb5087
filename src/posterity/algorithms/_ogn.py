"""OGN: a diagonal Gaussian with per-example squared gradients at its mean."""

from posterity.algorithms._base import Algorithm, diagonal
from posterity.families import DiagonalGaussian
from posterity.gradients import Delta, SquaredGradients
from posterity.rule import BayesianLearningRule


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
