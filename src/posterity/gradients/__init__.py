"""Estimates of ∇_μ E_q[ℓ]: where the loss is looked at, and what replaces its Hessian."""

from posterity.gradients._base import AnyFamily, Estimator
from posterity.gradients.conjugate import Conjugate
from posterity.gradients.curvatures import Curvature, GaussNewton, Hessian, SquaredGradients, Stein
from posterity.gradients.delta import Delta
from posterity.gradients.dropout import DropoutMasks
from posterity.gradients.enumeration import Enumeration
from posterity.gradients.given import AtPoints
from posterity.gradients.losses import AnyLoss, ConjugateLoss, DataLoss, LinearLoss, Loss
from posterity.gradients.monte_carlo import MonteCarlo
from posterity.gradients.quadrature import Quadrature
from posterity.gradients.relaxation import RelaxedBernoulli
from posterity.gradients.score import ScoreFunction

__all__ = [
    "AnyFamily",
    "AnyLoss",
    "AtPoints",
    "Conjugate",
    "ConjugateLoss",
    "Curvature",
    "DataLoss",
    "Delta",
    "DropoutMasks",
    "Enumeration",
    "Estimator",
    "GaussNewton",
    "Hessian",
    "LinearLoss",
    "Loss",
    "MonteCarlo",
    "Quadrature",
    "RelaxedBernoulli",
    "ScoreFunction",
    "SquaredGradients",
    "Stein",
]
