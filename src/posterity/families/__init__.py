"""Exponential families: natural and expectation parameters, entropy, KL, base measure, sampling."""

from posterity.families._base import CoordinateFamily, Coordinates, Family
from posterity.families.bernoulli import Bernoulli, SignBernoulli
from posterity.families.gaussian import DiagonalGaussian, FixedGaussian, Gaussian

__all__ = [
    "Bernoulli",
    "CoordinateFamily",
    "Coordinates",
    "DiagonalGaussian",
    "Family",
    "FixedGaussian",
    "Gaussian",
    "SignBernoulli",
]
