"""The low-rank-plus-diagonal Gaussian, as SWAG leaves it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from posterity.errors import Undefined, expected, require
from posterity.linalg import cholesky, log_det_psd
from posterity.noise import Key, normal
from posterity.posterior._structure import GaussianStructure, owned, pack, standard_normal, total, unpack, working
from posterity.trees import Tree, check_same_shapes, to_vector


class LowRank(GaussianStructure):
    """N(m, diag(v) + Σ_r d_r d_rᵀ).

    SWAG with K deviations δ_r from its running mean has v = ½ Var and d_r = δ_r / √(2(K − 1)).

    Precisions come from the Woodbury identity, so that nothing larger than (rank, rank) is ever factored:

        P = V⁻¹ − WᵀW,   W = L⁻¹DV⁻¹,   LLᵀ = I + DV⁻¹Dᵀ

    Args:
        mean: A tensor for each parameter.
        variance: The diagonal part v, shaped as the mean.
        deviations: The rows of D, shaped as the mean with a leading axis (rank, ...).

    References:
        Maddox et al., "A simple baseline for Bayesian uncertainty in deep learning", 2019.
    """

    kind: ClassVar[str] = "low_rank"
    why_not: ClassVar[str] = "neither layer-wise nor closed under addition: project it to 'diagonal' or 'full' first"

    def __init__(self, mean: Tree, variance: Tree, deviations: Tree) -> None:
        self.mean = owned(mean, "mean")
        self.diagonal = owned(variance, "variance")
        self.deviations = owned(deviations, "deviations")
        check_same_shapes(self.diagonal, self.mean, "variance")
        ranks = {len(d) if d.ndim else 0 for d in self.deviations.values()}
        same = len(ranks) == 1 and 0 not in ranks
        require(same, "deviations", "the same rank, at least 1, for every parameter", sorted(ranks))
        check_same_shapes({name: d[0] for name, d in self.deviations.items()}, self.mean, "deviations")
        for name, v in self.diagonal.items():
            if not bool((v >= 0).all()):
                raise expected(f"variance of {name!r}", "numbers >= 0", f"{v.min().item():g}")

    @property
    def rank(self) -> int:
        """Number of deviations."""
        return len(next(iter(self.deviations.values())))

    @property
    def variance(self) -> Tree:
        return {name: v + self.deviations[name].square().sum(0) for name, v in self.diagonal.items()}

    def sample(self, k: int, seed: int = 0) -> Tree:
        noise = standard_normal(self.mean, k, seed)
        # The mixing weights of the deviations take the key after those of the parameters.
        mix = normal(Key(seed, 0, k, len(self.mean)), self.rank, dtype=torch.float64)
        draw = {}
        for name, m in self.mean.items():
            rows = self.deviations[name].to(working(m))
            step = self.diagonal[name].sqrt() * noise[name] + torch.tensordot(mix.to(rows), rows, dims=1)
            draw[name] = (m + step).to(m.dtype)
        return draw

    def quadratic(self, tree: Mapping[str, Tensor]) -> Tensor:
        # Where deviations are much wider than v the two parts nearly cancel, and float32 would leave nothing.
        scaled = total(t.double().square() / self.diagonal[name].double() for name, t in tree.items())
        projected = torch.stack([w @ tree[name].reshape(-1).to(w) for name, w in self._whitened.items()]).sum(0)
        return scaled - projected.square().sum()

    def log_det_precision(self) -> Tensor:
        return -total(v.log() for v in self.diagonal.values()) - log_det_psd(self._factor)

    def precision_diagonal(self) -> Tree:
        return {
            name: (v.double().reciprocal() - self._whitened[name].square().sum(0).view_as(v)).to(v)
            for name, v in self.diagonal.items()
        }

    def precision_matrix(self) -> Tensor:
        self.require_dense("precision")
        whitened = torch.cat(list(self._whitened.values()), dim=1)
        return torch.diag(to_vector(self.diagonal).to(whitened).reciprocal()) - whitened.mT @ whitened

    def covariance_matrix(self) -> Tensor:
        self.require_dense("covariance")
        rows = torch.cat([d.reshape(self.rank, -1) for d in self.deviations.values()], dim=1)
        return torch.diag(to_vector(self.diagonal)) + rows.mT @ rows

    def tensors(self) -> Tree:
        return pack("mean", self.mean) | pack("variance", self.diagonal) | pack("deviations", self.deviations)

    def settings(self) -> dict[str, Any]:
        return {"names": list(self.names)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        mean, variance, deviations = (
            unpack(part, tensors, settings["names"]) for part in ("mean", "variance", "deviations")
        )
        return cls(mean, variance, deviations)

    @cached_property
    def _scaled(self) -> Tree:
        """DV⁻¹, a block (rank, size) for each parameter."""
        for name, v in self.diagonal.items():
            if not bool((v > 0).all()):
                raise Undefined(f"density: not defined for a Gaussian without variance in a weight of {name!r}")
        return {
            name: d.reshape(self.rank, -1).double() / self.diagonal[name].reshape(-1).double()
            for name, d in self.deviations.items()
        }

    @cached_property
    def _factor(self) -> Tensor:
        """L with LLᵀ = I + DV⁻¹Dᵀ."""
        terms = [s @ self.deviations[name].reshape(self.rank, -1).to(s).mT for name, s in self._scaled.items()]
        inner = torch.stack(terms).sum(0)
        return cholesky(inner + torch.eye(self.rank).to(inner), "low-rank precision")

    @cached_property
    def _whitened(self) -> Tree:
        """W = L⁻¹DV⁻¹, a block for each parameter."""
        return {name: torch.linalg.solve_triangular(self._factor, s, upper=False) for name, s in self._scaled.items()}
