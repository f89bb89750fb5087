"""What follows for a Gaussian once the precision of each block is known in an eigenbasis of Kronecker form."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from posterity.curvature.covariance import KroneckerCovariance
from posterity.posterior._structure import GaussianStructure, standard_normal, total
from posterity.trees import Tree

Factors = tuple[Tensor, ...]


class Eigen(NamedTuple):
    """One block in its eigenbasis: P = (U₁ ⊗ U₂) diag(values) (U₁ ⊗ U₂)ᵀ; without bases, P = diag(values)."""

    bases: Factors
    values: Tensor

    def coordinates(self, x: Tensor) -> Tensor:
        """(U₁ ⊗ U₂)ᵀ x."""
        return rotate(x.reshape(self.values.shape).to(self.values), tuple(u.mT for u in self.bases))

    def root_covariance(self, x: Tensor) -> Tensor:
        """Σ^½ x, by the symmetric root."""
        return rotate(self.coordinates(x) * self.values.rsqrt(), self.bases)


class InEigenbasis(GaussianStructure):
    """A Gaussian with one block for each parameter, each with its `Eigen`."""

    @property
    @abstractmethod
    def eigen(self) -> dict[str, Eigen]:
        """Each block's eigenbasis, and the eigenvalues of P in it, shaped by the sizes of the bases."""

    @property
    def variance(self) -> Tree:
        return self._shaped(
            {name: rotate(e.values.reciprocal(), tuple(u.square() for u in e.bases)) for name, e in self.eigen.items()}
        )

    def sample(self, k: int, seed: int = 0) -> Tree:
        noise = standard_normal(self.mean, k, seed)
        # By the symmetric root of Σ: which eigenvectors a machine finds, up to signs and order, makes no difference.
        steps = self._shaped({name: e.root_covariance(noise[name]) for name, e in self.eigen.items()})
        return {name: (m + steps[name]).to(m.dtype) for name, m in self.mean.items()}

    def quadratic(self, tree: Mapping[str, Tensor]) -> Tensor:
        terms = []
        for name, e in self.eigen.items():
            terms.append(e.values * e.coordinates(tree[name]).square())
        return total(terms)

    def log_det_precision(self) -> Tensor:
        return total(e.values.log() for e in self.eigen.values())

    def covariance_matrix(self) -> Tensor:
        self.require_dense("covariance")
        return self._matrix({name: e.values.reciprocal() for name, e in self.eigen.items()})

    def covariance(self) -> KroneckerCovariance:
        bases = {name: e.bases for name, e in self.eigen.items() if e.bases}
        return KroneckerCovariance(bases, {name: e.values.reciprocal() for name, e in self.eigen.items()})

    def _matrix(self, values: Mapping[str, Tensor]) -> Tensor:
        """The dense matrix with these eigenvalues."""
        blocks = []
        for name, e in self.eigen.items():
            s = values[name].reshape(-1)
            basis = reduce(torch.kron, e.bases) if e.bases else None
            blocks.append(s.diag() if basis is None else (basis * s) @ basis.mT)
        return torch.block_diag(*blocks)

    def _shaped(self, blocks: Mapping[str, Tensor]) -> Tree:
        return {name: block.reshape(self.mean[name].shape) for name, block in blocks.items()}


def rotate(x: Tensor, matrices: Factors) -> Tensor:
    """(M₁ ⊗ M₂) x, with x shaped (n₁, n₂): each matrix acts on its own axis."""
    for axis, matrix in enumerate(matrices):
        x = torch.tensordot(matrix, x, dims=([1], [axis])).movedim(0, axis)
    return x
