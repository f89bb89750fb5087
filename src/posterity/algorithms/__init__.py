"""Rows of Table 1: algorithms as choices of a family, an estimator and options of the rule, and nothing else."""

from posterity.algorithms._base import Algorithm
from posterity.algorithms.binary import bayesbinn, bernoulli_rule, straight_through
from posterity.algorithms.conjugate import (
    beta_bernoulli,
    dirichlet_categorical,
    gamma_poisson,
    normal_gamma,
)
from posterity.algorithms.kalman import LinearStateSpace, kalman_filter, kalman_smoother
from posterity.algorithms.mixtures import mixture_vi, multimodal
from posterity.algorithms.optimisers import adam, adamw, dropout, gradient_descent, momentum, rmsprop, sgd
from posterity.algorithms.regression import laplace, linear_regression, newton
from posterity.algorithms.variational import gaussian_vi, ogn, vogn

__all__ = [
    "Algorithm",
    "LinearStateSpace",
    "adam",
    "adamw",
    "bayesbinn",
    "bernoulli_rule",
    "beta_bernoulli",
    "dirichlet_categorical",
    "dropout",
    "gamma_poisson",
    "gaussian_vi",
    "gradient_descent",
    "kalman_filter",
    "kalman_smoother",
    "laplace",
    "linear_regression",
    "mixture_vi",
    "momentum",
    "multimodal",
    "newton",
    "normal_gamma",
    "ogn",
    "rmsprop",
    "sgd",
    "straight_through",
    "vogn",
]
