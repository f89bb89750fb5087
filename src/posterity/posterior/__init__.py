"""The posterior: what every learner hands over and every question is put to."""

from posterity.posterior._memory import Memory
from posterity.posterior._posterior import Posterior
from posterity.posterior._structure import Gaussian, Structure
from posterity.posterior.diagonal import Diagonal
from posterity.posterior.full import Full
from posterity.posterior.kronecker import Kronecker
from posterity.posterior.last_layer import LastLayer

__all__ = ["Diagonal", "Full", "Gaussian", "Kronecker", "LastLayer", "Memory", "Posterior", "Structure"]
