"""The Kronecker-factored Gaussian: one small matrix for each side of a layer, plus the prior."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from posterity.errors import expected, require
from posterity.linalg import symmetrise
from posterity.posterior._eigen import Eigen, Factors, InEigenbasis
from posterity.posterior._structure import GaussianStructure, owned, pack, total, unpack, working
from posterity.trees import Tree


@dataclass(frozen=True, eq=False, repr=False)
class Kronecker(InEigenbasis):
    """N(m, P⁻¹) with a block for each parameter: P = F₁ ⊗ F₂ + δI.

    A weight (out, in, ...) has the factors (B, A) of sizes out and in·...; a bias has the one factor (B,).

    Args:
        mean: A tensor for each parameter.
        factors: Positive-semidefinite factors for each parameter; the product of their sizes is its size.
        prior_precision: δ for each parameter, a single number.
    """

    mean: Tree
    factors: Mapping[str, Factors]
    prior_precision: Tree
    kind: ClassVar[str] = "kronecker"
    why_not: ClassVar[str] = "whose precisions do not add up to another one: project it to 'diagonal' or 'full' first"

    def __post_init__(self) -> None:
        mean = owned(self.mean, "mean")
        for what, given in (("factors", self.factors), ("prior precision", self.prior_precision)):
            if set(given) != set(mean):
                raise expected(what, f"one entry for each of {sorted(mean)}", sorted(given))
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "factors", {name: _fitting(name, self.factors[name], t) for name, t in mean.items()})
        deltas = {name: _number(name, self.prior_precision[name], t) for name, t in mean.items()}
        object.__setattr__(self, "prior_precision", deltas)

    @cached_property
    def eigen(self) -> dict[str, Eigen]:
        """Each block's eigenbasis, and the eigenvalues of P in it, shaped by the sizes of the factors."""
        return {name: self._diagonalise(name) for name in self.mean}

    def _diagonalise(self, name: str) -> Eigen:
        pairs = [torch.linalg.eigh(factor) for factor in self.factors[name]]
        # A positive-semidefinite factor has eigenvalues of −1e−8 in floating point; they are zeros.
        values = reduce(_outer, [pair[0].clamp(min=0) for pair in pairs]) + self.prior_precision[name]
        smallest = values.min().item() if values.numel() else 1.0
        require(smallest > 0, f"precision of {name!r}", "a positive-definite matrix", f"smallest eigenvalue {smallest}")
        return Eigen(tuple(pair[1] for pair in pairs), values)

    def trace(self, other: GaussianStructure) -> Tensor:
        if not isinstance(other, Kronecker) or self._sizes != other._sizes:
            return super().trace(other)
        # In the eigenbasis U of the other block, tr PΣ needs the diagonal of UᵀPU alone, which is Kronecker again.
        terms = []
        for name, e in other.eigen.items():
            turned = [(u * (f.to(u) @ u)).sum(0) for f, u in zip(self.factors[name], e.bases, strict=True)]
            terms.append((reduce(_outer, turned) + self.prior_precision[name]) / e.values)
        return total(terms)

    @property
    def _sizes(self) -> dict[str, list[int]]:
        return {name: [len(f) for f in factors] for name, factors in self.factors.items()}

    def precision_diagonal(self) -> Tree:
        return self._shaped(
            {
                name: reduce(_outer, [f.diagonal() for f in self.factors[name]]) + d
                for name, d in self.prior_precision.items()
            }
        )

    def precision_matrix(self) -> Tensor:
        self.require_dense("precision")
        blocks = []
        for name, delta in self.prior_precision.items():
            block = reduce(torch.kron, self.factors[name])
            blocks.append(block + delta * torch.eye(len(block), dtype=block.dtype, device=block.device))
        return torch.block_diag(*blocks)

    def tensors(self) -> Tree:
        factors = {f"factor{i}/{name}": f for name, block in self.factors.items() for i, f in enumerate(block)}
        return pack("mean", self.mean) | factors | pack("prior_precision", self.prior_precision)

    def settings(self) -> dict[str, Any]:
        return {"names": list(self.names), "factors": [len(self.factors[name]) for name in self.names]}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        names = settings["names"]
        factors = {
            name: tuple(tensors[f"factor{i}/{name}"] for i in range(count))
            for name, count in zip(names, settings["factors"], strict=True)
        }
        return cls(unpack("mean", tensors, names), factors, unpack("prior_precision", tensors, names))


def _outer(a: Tensor, b: Tensor) -> Tensor:
    return a.unsqueeze(-1) * b


def _fitting(name: str, factors: Factors, mean: Tensor) -> Factors:
    """The factors of one parameter, checked: square, finite, symmetric in shape and of the right total size."""
    require(len(factors) > 0, f"factors of {name!r}", "at least one matrix", "none")
    for factor in factors:
        square = factor.ndim == 2 and factor.shape[0] == factor.shape[1]
        require(square, f"factors of {name!r}", "square matrices", tuple(factor.shape))
        require(bool(torch.isfinite(factor).all()), f"factors of {name!r}", "finite numbers", "NaN or infinity")
    size = math.prod(len(factor) for factor in factors)
    require(size == mean.numel(), f"factors of {name!r}", f"sizes that multiply to {mean.numel()}", size)
    # `torch.kron` refuses to mix row-major and column-major matrices, which is how inverses come.
    return tuple(symmetrise(factor.detach()).to(mean.device).contiguous() for factor in factors)


def _number(name: str, delta: Tensor | float, mean: Tensor) -> Tensor:
    delta = torch.as_tensor(delta, dtype=working(mean), device=mean.device).detach().clone()
    require(delta.numel() == 1, f"prior precision of {name!r}", "one number", tuple(delta.shape))
    require(bool((delta >= 0).all()), f"prior precision of {name!r}", "a number >= 0", delta)
    return delta.reshape(())
