"""The delta method at a parameter: T at the mode of q replaces E_q[T], which turns message passing into EM."""

from __future__ import annotations

from functools import singledispatch

import torch

from posterity.errors import InvalidInput, require
from posterity.families import (
    Coordinates,
    DiagonalGaussian,
    Dirichlet,
    Family,
    Gamma,
    Gaussian,
    NormalGamma,
    NormalWishart,
)


class PointMass:
    """The mode θ* of exp⟨λ, T(θ)⟩, in the place of q: E_q[T(θ)] ≈ T(θ*).

    Args:
        family: The member with these λ.
    """

    def __init__(self, family: Family) -> None:
        self.family = family
        self.expectation = mode_statistics(family)

    @property
    def natural(self) -> Coordinates:
        """λ, whose mode this is."""
        return self.family.natural


@singledispatch
def mode_statistics(q: Family) -> Coordinates:
    """T(θ*) with θ* = argmax ⟨λ, T(θ)⟩.

    Examples:
        >>> (log_p,) = mode_statistics(Dirichlet([2.0, 4.0]))
        >>> log_p.exp()
        tensor([0.2500, 0.7500], dtype=torch.float64)
    """
    raise InvalidInput(f"no mode is known for {type(q).__name__}: EM cannot make it a point")


@mode_statistics.register
def _(q: Dirichlet) -> Coordinates:
    # A class that nobody is in would have log 0: it keeps a share at the limit of the digits.
    shares = q.natural[0].clamp(min=torch.finfo(q.concentration.dtype).eps)
    return ((shares / shares.sum(-1, keepdim=True)).log(),)


@mode_statistics.register
def _(q: NormalWishart) -> Coordinates:
    d = q.location.shape[-1]
    require(bool((q.degrees > d).all()), "the mode of a NormalWishart", f"degrees above {d}", q.degrees.min().item())
    precision = (q.degrees - d)[..., None, None] * q.scale
    weighted = (precision @ q.location.unsqueeze(-1)).squeeze(-1)
    return torch.logdet(precision), precision, weighted, (weighted * q.location).sum(-1)


@mode_statistics.register
def _(q: NormalGamma) -> Coordinates:
    require(bool((q.shape > 0.5).all()), "the mode of a NormalGamma", "shapes above ½", q.shape.min().item())
    precision = (q.shape - 0.5) / q.rate
    return precision.log(), precision, precision * q.location, precision * q.location**2


@mode_statistics.register
def _(q: Gamma) -> Coordinates:
    require(bool((q.shape > 1.0).all()), "the mode of a Gamma", "shapes above 1", q.shape.min().item())
    mode = (q.shape - 1.0) / q.rate
    return mode.log(), mode


@mode_statistics.register
def _(q: Gaussian) -> Coordinates:
    return q.statistics(q.mean)


@mode_statistics.register
def _(q: DiagonalGaussian) -> Coordinates:
    return q.statistics(q.mean)
