"""The full Gaussian: one dense precision over all weights, for small models and last layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from posterity.curvature.covariance import FullCovariance
from posterity.errors import require
from posterity.linalg import cholesky, log_det_psd, symmetrise
from posterity.posterior._structure import GaussianStructure, owned, pack, standard_normal, unpack, working
from posterity.trees import Tree, from_vector, to_vector


@dataclass(frozen=True, eq=False, repr=False)
class Full(GaussianStructure):
    """N(m, precision⁻¹).

    Args:
        mean: A tensor for each parameter.
        precision: Positive-definite matrix (D, D) over the parameters, flattened and concatenated in their order.
    """

    mean: Tree
    precision: Tensor
    kind: ClassVar[str] = "full"
    is_dense: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", owned(self.mean, "mean"))
        shape = (self.dimension, self.dimension)
        require(tuple(self.precision.shape) == shape, "precision", f"shape {shape}", tuple(self.precision.shape))
        object.__setattr__(self, "precision", symmetrise(self.precision.detach()))

    @cached_property
    def factor(self) -> Tensor:
        """L with LLᵀ = P."""
        return cholesky(self.precision, "precision")

    @property
    def variance(self) -> Tree:
        # Σ = L⁻ᵀL⁻¹, so the marginal variances are the squared norms of the columns of L⁻¹.
        return self._tree(self._inverse_factor.square().sum(0))

    def sample(self, k: int, seed: int = 0) -> Tree:
        noise = to_vector(standard_normal(self.mean, k, seed)).to(self.precision)
        step = torch.linalg.solve_triangular(self.factor.mT, noise.unsqueeze(-1), upper=True).squeeze(-1)
        steps = self._tree(step)
        return {name: (m + steps[name].to(m.device)).to(m.dtype) for name, m in self.mean.items()}

    def quadratic(self, tree: Mapping[str, Tensor]) -> Tensor:
        x = to_vector({name: tree[name] for name in self.names}).to(self.precision)
        return (x @ (self.precision @ x)).double()

    def log_det_precision(self) -> Tensor:
        return log_det_psd(self.factor).double()

    def precision_diagonal(self) -> Tree:
        return self._tree(self.precision.diagonal())

    def precision_matrix(self) -> Tensor:
        return self.precision

    def times(self, factor: float) -> Full:
        """The same mean with its precision times a number: a Gaussian that counts for so much."""
        return Full(self.mean, factor * self.precision)

    def covariance_matrix(self) -> Tensor:
        return symmetrise(self._inverse_factor.mT @ self._inverse_factor)

    def covariance(self) -> FullCovariance:
        # Layer-wise forms multiply it with gradients, which have the precision of the weights.
        dtype = reduce(torch.promote_types, map(working, self.mean.values()))
        return FullCovariance({name: t.shape for name, t in self.mean.items()}, self.covariance_matrix().to(dtype))

    def tensors(self) -> Tree:
        return pack("mean", self.mean) | {"precision": self.precision}

    def settings(self) -> dict[str, Any]:
        return {"names": list(self.names)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        return cls(unpack("mean", tensors, settings["names"]), tensors["precision"])

    @cached_property
    def _inverse_factor(self) -> Tensor:
        identity = torch.eye(len(self.factor), dtype=self.factor.dtype, device=self.factor.device)
        return torch.linalg.solve_triangular(self.factor, identity, upper=False)

    def _tree(self, vector: Tensor) -> Tree:
        return from_vector(vector, self.mean)
