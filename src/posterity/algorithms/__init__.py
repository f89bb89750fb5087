"""Rows of Table 1: algorithms as choices of a family, an estimator and options of the rule, and nothing else."""

from posterity.algorithms._adam import adam
from posterity.algorithms._adamw import adamw
from posterity.algorithms._base import Algorithm
from posterity.algorithms._bayesbinn import bayesbinn
from posterity.algorithms._bernoulli_rule import bernoulli_rule
from posterity.algorithms._dropout import dropout
from posterity.algorithms._gaussian_vi import gaussian_vi
from posterity.algorithms._gradient_descent import gradient_descent
from posterity.algorithms._laplace import laplace
from posterity.algorithms._linear_regression import linear_regression
from posterity.algorithms._mixture_vi import mixture_vi
from posterity.algorithms._momentum import momentum
from posterity.algorithms._multimodal import multimodal
from posterity.algorithms._newton import newton
from posterity.algorithms._ogn import ogn
from posterity.algorithms._rmsprop import rmsprop
from posterity.algorithms._sgd import sgd
from posterity.algorithms._straight_through import straight_through
from posterity.algorithms._vogn import vogn
from posterity.algorithms.conjugate_bayes import (
    beta_bernoulli,
    dirichlet_categorical,
    gamma_poisson,
    normal_gamma,
)
from posterity.algorithms.kalman import LinearStateSpace, kalman_filter, kalman_smoother

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
