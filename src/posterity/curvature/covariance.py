"""Covariances over named parameters, in the shapes that layer-wise closed forms can use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from posterity.trees import Tree


@dataclass(frozen=True)
class DiagonalCovariance:
    """Σ = diag(variance), one variance for each weight."""

    variance: Tree

    def scaled(self, factor: float) -> DiagonalCovariance:
        """The covariance times a number."""
        return DiagonalCovariance({name: factor * v for name, v in self.variance.items()})


@dataclass(frozen=True)
class KroneckerCovariance:
    """Block-diagonal Σ, each block diagonal in a Kronecker eigenbasis: (U_B ⊗ U_A) diag(variance) (U_B ⊗ U_A)ᵀ.

    A weight (out, in) has bases (U_B, U_A) and variances (out, in), its trailing axes flattened; a bias has (U_B,).
    """

    bases: Mapping[str, tuple[Tensor, ...]]
    variance: Tree

    def scaled(self, factor: float) -> KroneckerCovariance:
        """The covariance times a number."""
        return KroneckerCovariance(self.bases, {name: factor * v for name, v in self.variance.items()})


@dataclass(frozen=True)
class FullCovariance:
    """A dense Σ over the parameters named in `shapes`, concatenated in that order; all other parameters are fixed."""

    shapes: Mapping[str, torch.Size]
    matrix: Tensor

    def scaled(self, factor: float) -> FullCovariance:
        """The covariance times a number."""
        return FullCovariance(self.shapes, factor * self.matrix)


Covariance = DiagonalCovariance | KroneckerCovariance | FullCovariance
