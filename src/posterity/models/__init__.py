"""Classical models with real posteriors, as scikit-learn estimators."""

import importlib.util

from posterity.errors import MissingExtra

if importlib.util.find_spec("sklearn") is None:
    raise MissingExtra("models: needs scikit-learn; install it with pip install 'posterity[models]'")

from posterity.models.factor_analysis import FactorAnalysis
from posterity.models.gaussian_mixture import GaussianMixture
from posterity.models.gaussian_process import GaussianProcess, SparseGaussianProcess
from posterity.models.generalised_linear import BayesianLogisticRegression, BayesianPoissonRegression
from posterity.models.hidden_markov import HiddenMarkovModel
from posterity.models.latent_dirichlet import LatentDirichletAllocation
from posterity.models.linear import BayesianRidge
from posterity.models.mixture_approximation import MixtureApproximation
from posterity.models.networks import BayesianMLPClassifier, BayesianMLPRegressor
from posterity.models.state_space import LinearGaussianStateSpace

__all__ = [
    "BayesianLogisticRegression",
    "BayesianMLPClassifier",
    "BayesianMLPRegressor",
    "BayesianPoissonRegression",
    "BayesianRidge",
    "FactorAnalysis",
    "GaussianMixture",
    "GaussianProcess",
    "HiddenMarkovModel",
    "LatentDirichletAllocation",
    "LinearGaussianStateSpace",
    "MixtureApproximation",
    "SparseGaussianProcess",
]
