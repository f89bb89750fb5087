"""Exponential families: natural and expectation parameters, entropy, KL, base measure, sampling."""

from posterity.families._base import Family

__all__ = ["Family"]
