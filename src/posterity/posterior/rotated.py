"""The rotated Gaussian: a diagonal precision in a basis of Kronecker form, one basis for each side of a layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from posterity.errors import expected, require
from posterity.posterior._eigen import Eigen, Factors, InEigenbasis, rotate
from posterity.posterior._structure import owned, pack, unpack, working
from posterity.trees import Tree


@dataclass(frozen=True, eq=False, repr=False)
class Rotated(InEigenbasis):
    """N(m, P⁻¹) with a block for each parameter: P = (U₁ ⊗ U₂) diag(s) (U₁ ⊗ U₂)ᵀ, any s > 0.

    A weight (out, in, ...) has the bases (U₁, U₂) of sizes out and in·...; a bias has the one basis (U₁,). A parameter
    without bases is not turned: P = diag(s).

    Args:
        mean: A tensor for each parameter.
        bases: Orthogonal matrices for each parameter that is turned; the product of their sizes is its size.
        precision: s for each parameter, with an axis for each basis, or shaped as the parameter without bases.
    """

    mean: Tree
    bases: Mapping[str, Factors]
    precision: Tree
    kind: ClassVar[str] = "rotated"
    why_not: ClassVar[str] = "whose precisions do not add up to another one: project it to 'diagonal' or 'full' first"

    def __post_init__(self) -> None:
        mean = owned(self.mean, "mean")
        if set(self.precision) != set(mean):
            raise expected("precision", f"one entry for each of {sorted(mean)}", sorted(self.precision))
        if not set(self.bases) <= set(mean):
            raise expected("bases", f"entries for some of {sorted(mean)}", sorted(self.bases))
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "precision", owned({name: self.precision[name] for name in mean}, "precision"))
        for name, values in self.precision.items():
            shape, what = mean[name].shape, f"precision of {name!r}"
            require(values.numel() == shape.numel(), what, f"{shape.numel()} numbers", values.numel())
            if not bool((values > 0).all()):
                raise expected(what, "positive numbers", values.min().item())
            if name not in self.bases:
                require(values.shape == shape, what, f"shape {tuple(shape)} without bases", tuple(values.shape))
        object.__setattr__(self, "bases", {name: self._checked(name) for name in mean if name in self.bases})

    def _checked(self, name: str) -> Factors:
        mean, values = self.mean[name], self.precision[name]
        sizes = [tuple(u.shape) for u in self.bases[name]]
        square = [(size, size) for size in values.shape]
        require(sizes == square, f"bases of {name!r}", f"matrices of shapes {square}", sizes)
        for u in self.bases[name]:
            off = (u.double().mT @ u.double() - torch.eye(len(u), dtype=torch.float64, device=u.device)).abs().max()
            require(bool(off < 1e-3), f"bases of {name!r}", "orthogonal matrices", f"UᵀU off the identity by {off:.2g}")
        return tuple(
            u.detach().to(mean.device, working(mean)).clone(memory_format=torch.contiguous_format)
            for u in self.bases[name]
        )

    @cached_property
    def eigen(self) -> dict[str, Eigen]:
        """Each block's basis and precision."""
        return {
            name: Eigen(self.bases.get(name, ()), s.to(working(self.mean[name]))) for name, s in self.precision.items()
        }

    def precision_diagonal(self) -> Tree:
        return self._shaped({n: rotate(e.values, tuple(u.square() for u in e.bases)) for n, e in self.eigen.items()})

    def precision_matrix(self) -> Tensor:
        self.require_dense("precision")
        return self._matrix({name: e.values for name, e in self.eigen.items()})

    def tensors(self) -> Tree:
        bases = {f"basis{i}/{name}": u for name, block in self.bases.items() for i, u in enumerate(block)}
        return pack("mean", self.mean) | bases | pack("precision", self.precision)

    def settings(self) -> dict[str, Any]:
        return {"names": list(self.names), "bases": [len(self.bases.get(name, ())) for name in self.names]}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        names = settings["names"]
        bases = {
            name: tuple(tensors[f"basis{i}/{name}"] for i in range(count))
            for name, count in zip(names, settings["bases"], strict=True)
            if count
        }
        return cls(unpack("mean", tensors, names), bases, unpack("precision", tensors, names))
