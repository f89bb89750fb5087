"""Likelihoods of the last layer: loss, its first and second derivatives in the logits, mean, sampling, decisions."""

from posterity.likelihoods._base import Likelihood, classes_last, likelihood
from posterity.likelihoods.bernoulli import BernoulliLikelihood
from posterity.likelihoods.categorical import CategoricalLikelihood
from posterity.likelihoods.gaussian import GaussianLikelihood
from posterity.likelihoods.poisson import PoissonLikelihood
from posterity.likelihoods.student_t import StudentTLikelihood

__all__ = [
    "BernoulliLikelihood",
    "CategoricalLikelihood",
    "GaussianLikelihood",
    "Likelihood",
    "PoissonLikelihood",
    "StudentTLikelihood",
    "classes_last",
    "likelihood",
]
