"""Classical models with real posteriors, as scikit-learn estimators."""

from posterity.models.gaussian_mixture import GaussianMixture
from posterity.models.gaussian_process import GaussianProcess, SparseGaussianProcess
from posterity.models.latent_dirichlet import LatentDirichletAllocation
from posterity.models.linear import BayesianLogisticRegression, BayesianPoissonRegression, BayesianRidge

__all__ = [
    "BayesianLogisticRegression",
    "BayesianPoissonRegression",
    "BayesianRidge",
    "GaussianMixture",
    "GaussianProcess",
    "LatentDirichletAllocation",
    "SparseGaussianProcess",
]
