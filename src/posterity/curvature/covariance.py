"""Covariances over named parameters, in the shapes that layer-wise closed forms can use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from posterity.trees import Tree, check_same_shapes, from_vector, state_dtype, to_vector

Bases = tuple[Tensor, ...]  # (U_B, U_A) of a weight, (U_B,) of a parameter with one axis


@dataclass(frozen=True)
class DiagonalCovariance:
    """Σ = diag(variance), one variance for each weight."""

    variance: Tree

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters that it covers."""
        return tuple(self.variance)

    def scaled(self, factor: float) -> DiagonalCovariance:
        """The covariance times a number."""
        return DiagonalCovariance({name: factor * v for name, v in self.variance.items()})

    def times(self, tree: Tree) -> Tree:
        """Σ Δ for a direction Δ in the space of the weights."""
        check_same_shapes(tree, self.variance, "direction")
        return {name: v * tree[name] for name, v in self.variance.items()}


@dataclass(frozen=True)
class KroneckerCovariance:
    """Block-diagonal Σ, each block diagonal in a Kronecker eigenbasis: (U_B ⊗ U_A) diag(variance) (U_B ⊗ U_A)ᵀ.

    A weight (out, in) has bases (U_B, U_A) and variances (out, in), its trailing axes flattened; a bias has (U_B,). A
    parameter without bases is diagonal as it is.
    """

    bases: Mapping[str, Bases]
    variance: Tree

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters that it covers."""
        return tuple(self.variance)

    def scaled(self, factor: float) -> KroneckerCovariance:
        """The covariance times a number."""
        return KroneckerCovariance(self.bases, {name: factor * v for name, v in self.variance.items()})

    def times(self, tree: Tree) -> Tree:
        """Σ Δ for a direction Δ in the space of the weights."""
        return {
            name: times_rows(tree[name].flatten(), variance, self.bases.get(name)).view_as(tree[name])
            for name, variance in self.variance.items()
        }


@dataclass(frozen=True)
class FullCovariance:
    """A dense Σ over the parameters named in `shapes`, concatenated in that order; all other parameters are fixed."""

    shapes: Mapping[str, torch.Size]
    matrix: Tensor

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters that it covers."""
        return tuple(self.shapes)

    def scaled(self, factor: float) -> FullCovariance:
        """The covariance times a number."""
        return FullCovariance(self.shapes, factor * self.matrix)

    def times(self, tree: Tree) -> Tree:
        """Σ Δ for a direction Δ in the space of the weights."""
        like = {name: tree[name] for name in self.shapes}
        return from_vector(self.matrix @ to_vector(like), like)


Covariance = DiagonalCovariance | KroneckerCovariance | FullCovariance


def fitted(covariance: Covariance, parameters: Mapping[str, Tensor]) -> Covariance:
    """The same covariance where the parameters are, and in their precision (float32 at least)."""
    if isinstance(covariance, FullCovariance):
        like = [parameters[name] for name in covariance.shapes]
        dtype = reduce(torch.promote_types, (state_dtype(p.dtype) for p in like))
        return FullCovariance(covariance.shapes, covariance.matrix.to(like[0].device, dtype))

    def fit(t: Tensor, name: str) -> Tensor:
        return t.to(parameters[name].device, state_dtype(parameters[name].dtype))

    variance = {name: fit(v, name) for name, v in covariance.variance.items()}
    if isinstance(covariance, DiagonalCovariance):
        return DiagonalCovariance(variance)
    return KroneckerCovariance({n: tuple(fit(u, n) for u in us) for n, us in covariance.bases.items()}, variance)


def rotate(rows: Tensor, bases: Bases) -> Tensor:
    """Rows (..., out · in) in Kronecker coordinates: U_Bᵀ G U_A, or U_Bᵀ g for a parameter with one axis."""
    if len(bases) == 1:
        return rows @ bases[0]
    return (bases[0].T @ rows.unflatten(-1, (len(bases[0]), len(bases[1]))) @ bases[1]).flatten(-2)


def times_rows(rows: Tensor, variance: Tensor, bases: Bases | None) -> Tensor:
    """Σ g for rows g (..., numel) of one parameter, diagonal in its bases or, without them, as it is."""
    if bases is None:
        return rows * variance.flatten()
    return rotate(rotate(rows, bases) * variance.flatten(), tuple(base.T for base in bases))
