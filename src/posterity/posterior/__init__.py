"""The posterior: the result of every learner and the input of every question."""

from posterity.errors import renamed
from posterity.posterior._memory import Memory
from posterity.posterior._posterior import Posterior
from posterity.posterior._structure import GaussianStructure, Structure
from posterity.posterior.diagonal import Diagonal
from posterity.posterior.dropout import Dropout
from posterity.posterior.fitted_model import FittedModel
from posterity.posterior.full import Full
from posterity.posterior.kronecker import Kronecker
from posterity.posterior.last_layer import LastLayer
from posterity.posterior.low_rank import LowRank
from posterity.posterior.mixture import Ensemble, Mixture
from posterity.posterior.pruning import Pruned
from posterity.posterior.rotated import Rotated
from posterity.posterior.signs import Signs
from posterity.posterior.sites import Site
from posterity.posterior.training import Training

__all__ = [
    "Diagonal",
    "Dropout",
    "Ensemble",
    "FittedModel",
    "Full",
    "GaussianStructure",
    "Kronecker",
    "LastLayer",
    "LowRank",
    "Memory",
    "Mixture",
    "Posterior",
    "Pruned",
    "Rotated",
    "Signs",
    "Site",
    "Structure",
    "Training",
]

__getattr__ = renamed(__name__, {"Gaussian": "GaussianStructure"})
