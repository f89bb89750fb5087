"""The last-layer posterior: a Gaussian over the head, everything below it fixed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from posterity.curvature.covariance import Covariance
from posterity.errors import expected
from posterity.families import DiagonalGaussian, Gaussian
from posterity.posterior._structure import Structure, owned, pack, unpack
from posterity.posterior.diagonal import Diagonal
from posterity.posterior.full import Full
from posterity.posterior.kronecker import Kronecker
from posterity.trees import Tree

_INNER: dict[str, type[Diagonal] | type[Full] | type[Kronecker]] = {c.kind: c for c in (Diagonal, Full, Kronecker)}


@dataclass(frozen=True, eq=False, repr=False)
class LastLayer(Structure):
    """A Gaussian over the last layer's parameters; the rest has no uncertainty.

    Densities, entropies and divergences are those of the last layer.

    Args:
        inner: Diagonal, Full or Kronecker over the names of the last layer.
        rest: The fixed parameters.
    """

    inner: Diagonal | Full | Kronecker
    rest: Tree
    mean: Tree = field(init=False)
    kind: ClassVar[str] = "last_layer"

    def __post_init__(self) -> None:
        rest = owned(self.rest, "rest") if self.rest else {}
        both = sorted(set(rest) & set(self.inner.names))
        if both:
            raise expected("rest", "only parameters outside the last layer", both[0])
        object.__setattr__(self, "rest", rest)
        object.__setattr__(self, "mean", rest | self.inner.mean)

    @property
    def varying(self) -> Diagonal | Full | Kronecker:
        return self.inner

    @property
    def fixed(self) -> Tree:
        return self.rest

    @property
    def gaussian(self) -> Diagonal | Full | Kronecker:
        return self.inner

    @property
    def variance(self) -> Tree:
        return {name: torch.zeros_like(t) for name, t in self.rest.items()} | self.inner.variance

    def sample(self, k: int, seed: int = 0) -> Tree:
        return {name: t.clone() for name, t in self.rest.items()} | self.inner.sample(k, seed)

    def log_prob(self, tree: Mapping[str, Tensor]) -> Tensor:
        return self.inner.log_prob({name: tree[name] for name in self.inner.names if name in tree})

    def entropy(self) -> Tensor:
        return self.inner.entropy()

    def kl(self, other: Structure) -> Tensor:
        return self.inner.kl(self.counterpart(other))

    def counterpart(self, other: Structure) -> Structure:
        """The part of another structure, for instance a prior over all parameters, for the last layer."""
        if isinstance(other, LastLayer):
            return other.inner
        return other.restrict(self.inner.names) if isinstance(other, Diagonal) else other

    def as_family(self) -> Gaussian | DiagonalGaussian:
        return self.inner.as_family()

    def covariance(self) -> Covariance:
        return self.inner.covariance()

    def tensors(self) -> Tree:
        return pack("inner", self.inner.tensors()) | pack("rest", self.rest)

    def settings(self) -> dict[str, Any]:
        return {"rest": list(self.rest), "inner": {"kind": self.inner.kind, **self.inner.settings()}}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        inner = _INNER[settings["inner"]["kind"]].from_tensors(unpack("inner", tensors), settings["inner"])
        return cls(inner, unpack("rest", tensors, settings["rest"]))
