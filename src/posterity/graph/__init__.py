"""Message passing in conjugate-exponential models: VMP, SVI, EM, non-conjugate VMP and CVI, one engine."""

from posterity.errors import renamed
from posterity.graph._cvi import SiteFit, cvi
from posterity.graph._em import em
from posterity.graph._factor import Evaluation, Factor
from posterity.graph._model import Model
from posterity.graph._svi import svi, svi_step
from posterity.graph._vmp import vmp
from posterity.graph.emissions import Emission, bernoulli, categorical, diagonal_gaussian, gaussian, poisson
from posterity.graph.factors import Chain, LinearFactor, MixtureFactor, Observed, Shrinkage, SiteFactor, Topics
from posterity.graph.latent import DenseGaussian, LatentGaussian, Marginals, Sites, SparseGaussian
from posterity.graph.modes import PointMass
from posterity.graph.state_space import StateBeliefs, filter_states, smooth_states
from posterity.graph.sweeps import Fit

__all__ = [
    "Chain",
    "DenseGaussian",
    "Emission",
    "Evaluation",
    "Factor",
    "Fit",
    "LatentGaussian",
    "LinearFactor",
    "Marginals",
    "MixtureFactor",
    "Model",
    "Observed",
    "PointMass",
    "Shrinkage",
    "SiteFactor",
    "SiteFit",
    "Sites",
    "SparseGaussian",
    "StateBeliefs",
    "Topics",
    "bernoulli",
    "categorical",
    "cvi",
    "diagonal_gaussian",
    "em",
    "filter_states",
    "gaussian",
    "poisson",
    "smooth_states",
    "svi",
    "svi_step",
    "vmp",
]

__getattr__ = renamed(
    __name__, {"Linear": "LinearFactor", "Mixture": "MixtureFactor", "Point": "PointMass", "Site": "SiteFactor"}
)
