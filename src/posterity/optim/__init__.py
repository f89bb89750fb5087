"""Optimizers that return a posterior: drop-in `torch.optim.Optimizer` classes for networks."""

from posterity.optim._diagnostics import Diagnostics
from posterity.optim._ivon_opt import load_ivon_opt
from posterity.optim._suggest import Suggestion, suggest
from posterity.optim.binary import STE, BayesBiNN
from posterity.optim.bsam import BayesianSAM
from posterity.optim.engine import VariationalOptimizer
from posterity.optim.evon import EVON
from posterity.optim.ivon import IVON
from posterity.optim.mixture import MixtureIVON
from posterity.optim.sam import SAM
from posterity.optim.soba import SOBA
from posterity.optim.vadam import Vadam
from posterity.optim.variational import Variational
from posterity.optim.variational_newton import VariationalNewton
from posterity.optim.vogn import OGN, VOGN

__all__ = [
    "EVON",
    "IVON",
    "OGN",
    "SAM",
    "SOBA",
    "STE",
    "VOGN",
    "BayesBiNN",
    "BayesianSAM",
    "Diagnostics",
    "MixtureIVON",
    "Suggestion",
    "Vadam",
    "Variational",
    "VariationalNewton",
    "VariationalOptimizer",
    "load_ivon_opt",
    "suggest",
]
