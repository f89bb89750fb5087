"""Exponential families: natural and expectation parameters, entropy, KL, base measure, sampling."""

from posterity.families._base import CoordinateFamily, Coordinates, Family
from posterity.families._conditional import ConditionalFamily
from posterity.families.bernoulli import Bernoulli, SignBernoulli
from posterity.families.categorical import Categorical
from posterity.families.diagonal_gaussian import DiagonalGaussian
from posterity.families.dirichlet import Beta, Dirichlet
from posterity.families.gamma import Gamma, InverseGamma, UnitGamma
from posterity.families.gaussian import FixedGaussian, Gaussian
from posterity.families.mixtures import MixtureOfGaussians, StudentT
from posterity.families.normal_gamma import NormalGamma
from posterity.families.normal_wishart import NormalWishart
from posterity.families.poisson import Poisson
from posterity.families.product import Product
from posterity.families.wishart import Wishart

__all__ = [
    "Bernoulli",
    "Beta",
    "Categorical",
    "ConditionalFamily",
    "CoordinateFamily",
    "Coordinates",
    "DiagonalGaussian",
    "Dirichlet",
    "Family",
    "FixedGaussian",
    "Gamma",
    "Gaussian",
    "InverseGamma",
    "MixtureOfGaussians",
    "NormalGamma",
    "NormalWishart",
    "Poisson",
    "Product",
    "SignBernoulli",
    "StudentT",
    "UnitGamma",
    "Wishart",
]
