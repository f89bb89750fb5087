"""One parameter in one forward pass: from signals at its layer's output to its gradients, and back to tangents.

Positions are the places at which a layer meets an example: pixels of a convolution, steps of a sequence, repeated
calls. Signals b have shape (R, n, T, out): roots, examples, positions, outputs. Where Kronecker bases are given,
signals and tangents are in the coordinates of `output_basis`, so that a layer turns them once for all its parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from posterity.curvature._gradients import Gradient, Lookup, Outer, Rows
from posterity.curvature.covariance import rotate

Bases = tuple[Tensor, ...]


class Site(ABC):
    """How one parameter takes part in its layer: y = y(parameter), linear in the parameter."""

    shape: torch.Size
    plain: bool  # its Kronecker factor of the signals is the plain sum of b bᵀ
    input_axis: ClassVar[int] = 1  # which Kronecker factor is that of the layer's input

    @abstractmethod
    def output_basis(self, bases: Bases) -> Tensor | None:
        """The basis in which signals are wanted and tangents given, if that is not the one of the layer."""

    @abstractmethod
    def gradient(self, b: Tensor, examples: slice, bases: Bases | None = None) -> Gradient:
        """Per-example gradients from signals, in the coordinates of `bases` where they are given."""

    @abstractmethod
    def tangent(self, direction: Tensor, examples: slice, bases: Bases | None = None) -> Tensor:
        """Change (n, T, out) of the layer's output when example n moves the parameter by `direction` (n, numel)."""

    @abstractmethod
    def numbers(self, roots: int) -> int:
        """How many numbers an example needs while its gradients, not written out, are in use."""

    def pairs(self, roots: int, others: int) -> int:
        """How many numbers an example needs while its gradients meet those of so many others."""
        return self.numel + others * roots * (roots + self.shape[0])

    def signal_factor(self, b: Tensor, reduce: bool) -> Tensor:
        """Sum of b bᵀ over roots, examples and positions; with `reduce`, positions are summed first."""
        return outer(b.sum(2) if reduce else b)

    def input_factor(self, examples: slice, reduce: bool) -> tuple[Tensor, int]:
        """Sum of a aᵀ over examples and positions, and how many there were; with `reduce`, of their means."""
        raise NotImplementedError  # a parameter with one axis has no factor of the inputs

    def output_variance(self, variance: Tensor, bases: Bases | None = None) -> Tensor | None:
        """The variances (n, out) of the layer's output when the parameter has variances S.

        Only where a layer meets each example once: elsewhere the output is not a vector of independent numbers.
        """
        return None

    def spread(self, b: Tensor, variance: Tensor, examples: slice, bases: Bases | None = None) -> Tensor:
        """The output tangent of the direction S ∘ G_n: signals (1, n, T, out) in, tangents (n, T, out) out."""
        rows = self.gradient(b, examples, bases).rows()[0]
        return self.tangent(rows * variance.flatten(), examples, bases)

    @property
    def numel(self) -> int:
        return self.shape.numel()


@dataclass(frozen=True)
class Matrix(Site):
    """The weight of y_t = W a_t (of each group of channels): G = Σ_t b_t a_tᵀ."""

    shape: torch.Size
    inputs: Callable[[slice], Tensor]  # a, (n, T, groups, in)
    positions: int
    groups: int = 1
    plain: bool = True

    @property
    def rank_one(self) -> bool:
        return self.positions == 1 and self.groups == 1

    def output_basis(self, bases: Bases) -> Tensor | None:
        return bases[0] if self.groups == 1 else None  # the basis of the outputs mixes groups

    def activations(self, examples: slice, bases: Bases | None = None) -> Tensor:
        """Inputs a (n, T, groups, in)."""
        a = self.inputs(examples)
        return a if bases is None else a @ bases[1]

    def gradient(self, b: Tensor, examples: slice, bases: Bases | None = None) -> Gradient:
        if bases is not None and self.groups > 1:
            return Rows(rotate(self.gradient(b, examples).rows(), bases))
        a = self.activations(examples, bases)
        if self.rank_one:
            return Outer(b[:, :, 0], a[:, 0, 0])
        b = b.unflatten(-1, (self.groups, -1))  # (R, n, T, groups, out)
        return Rows((b.permute(0, 1, 3, 4, 2) @ a.transpose(1, 2)).flatten(2))

    def tangent(self, direction: Tensor, examples: slice, bases: Bases | None = None) -> Tensor:
        if bases is not None and self.groups > 1:
            return self.tangent(rotate(direction, tuple(u.T for u in bases)), examples)
        a = self.activations(examples, bases).transpose(1, 2)  # (n, groups, T, in)
        weight = direction.unflatten(-1, (self.groups, -1, a.shape[-1]))
        return (a @ weight.mT).transpose(1, 2).flatten(2)

    def output_variance(self, variance: Tensor, bases: Bases | None = None) -> Tensor | None:
        if not self.rank_one:
            return None
        squared = self.activations(slice(None), bases)[:, 0, 0].square()
        return squared @ variance.reshape(-1, squared.shape[-1]).T

    def input_factor(self, examples: slice, reduce: bool) -> tuple[Tensor, int]:
        a = self.activations(examples)
        a = a.mean(1) if reduce else a
        return outer(a), a.shape[:-1].numel()

    def numbers(self, roots: int) -> int:
        outputs, inputs = self.shape[0], self.numel // self.shape[0]
        width = roots * outputs if self.rank_one else roots * self.numel
        return width + self.positions * (self.groups * inputs + roots * outputs)


@dataclass(frozen=True)
class Vector(Site):
    """A bias (x = 1) or the scale of a normalisation (x its normalised input): y_t = p ∘ x_t, G = Σ_t b_t ∘ x_t."""

    shape: torch.Size
    inputs: Callable[[slice], Tensor] | None  # x, (n, T, out)
    positions: int
    plain: bool = False  # the bias of a weight, not the scale or shift of a normalisation

    def output_basis(self, bases: Bases) -> Tensor | None:
        return bases[0] if self.inputs is None else None

    def gradient(self, b: Tensor, examples: slice, bases: Bases | None = None) -> Gradient:
        scaled = b if self.inputs is None else b * self.inputs(examples)
        values = scaled[:, :, 0] if self.positions == 1 else scaled.sum(2)
        return Rows(values if bases is None or self.inputs is None else values @ bases[0])

    def tangent(self, direction: Tensor, examples: slice, bases: Bases | None = None) -> Tensor:
        if self.inputs is None:
            return direction.unsqueeze(1).expand(-1, self.positions, -1)
        return (direction if bases is None else direction @ bases[0].T).unsqueeze(1) * self.inputs(examples)

    def output_variance(self, variance: Tensor, bases: Bases | None = None) -> Tensor | None:
        return variance.unsqueeze(0) if self.inputs is None and self.positions == 1 else None

    def signal_factor(self, b: Tensor, reduce: bool) -> Tensor:
        # The scale and shift of a normalisation have few enough entries for their exact block.
        return super().signal_factor(b, reduce) if self.plain else outer(self.gradient(b, slice(None)).rows())

    def numbers(self, roots: int) -> int:
        return (roots + 1) * self.numel * self.positions


@dataclass(frozen=True)
class Table(Site):
    """The weight (rows, width) of an embedding: y_t = row number index_t."""

    input_axis: ClassVar[int] = 0

    shape: torch.Size
    index: Tensor  # (B, T)
    padding: int | None  # a row that is never trained
    dtype: torch.dtype
    plain: bool = False

    @property
    def positions(self) -> int:
        return self.index.shape[1]

    def output_basis(self, bases: Bases) -> Tensor | None:
        return bases[1]

    def gradient(self, b: Tensor, examples: slice, bases: Bases | None = None) -> Gradient:
        index = self.index[examples]
        b = self._trained(b, index)
        if bases is not None:
            return Rows((bases[0][index].mT @ b).flatten(2))
        same = index.unsqueeze(-1) == index.unsqueeze(-2)  # (n, T, T)
        first = ~same.tril(-1).any(-1)
        return Lookup(index, (same.to(b) @ b) * first.unsqueeze(-1), self.shape)

    def tangent(self, direction: Tensor, examples: slice, bases: Bases | None = None) -> Tensor:
        index = self.index[examples]
        table = direction.unflatten(-1, self.shape)
        if bases is not None:
            y = bases[0][index] @ table
        else:
            y = table.gather(1, index.unsqueeze(-1).expand(-1, -1, self.shape[1]))
        return self._trained(y, index)

    def spread(self, b: Tensor, variance: Tensor, examples: slice, bases: Bases | None = None) -> Tensor:
        if bases is not None:
            return super().spread(b, variance, examples, bases)
        index = self.index[examples]
        same = (index.unsqueeze(-1) == index.unsqueeze(-2)).to(b)
        return variance[index] * (same @ self._trained(b[0], index))

    def signal_factor(self, b: Tensor, reduce: bool) -> Tensor:
        return super().signal_factor(self._trained(b, self.index), reduce)

    def input_factor(self, examples: slice, reduce: bool) -> tuple[Tensor, int]:
        index = self.index[examples]
        one_hot = self._trained(F.one_hot(index, self.shape[0]).to(self.dtype), index)
        a = one_hot.mean(1) if reduce else one_hot
        return outer(a), a.shape[:-1].numel()

    def _trained(self, y: Tensor, index: Tensor) -> Tensor:
        """Zero where the row that is never trained is looked up."""
        return y if self.padding is None else y * (index != self.padding).unsqueeze(-1)

    def pairs(self, roots: int, others: int) -> int:
        return others * self.positions * (self.positions + roots * self.shape[1])

    def numbers(self, roots: int) -> int:
        return self.positions * (2 * roots * self.shape[1] + self.positions)


def outer(x: Tensor) -> Tensor:
    """Sum of x xᵀ over all leading axes."""
    flat = x.flatten(0, -2)
    return flat.T @ flat


def split(total: int, numbers: int, itemsize: int, memory: int) -> list[slice]:
    """Slices of `total` examples, each within `memory` bytes when one example needs `numbers` numbers."""
    step = max(1, memory // max(1, numbers * itemsize))
    return [slice(start, min(start + step, total)) for start in range(0, total, step)]


def concatenate(parts: list[Callable[[slice], Tensor]]) -> Callable[[slice], Tensor]:
    """Inputs of several calls of one layer, joined along the positions."""
    if len(parts) == 1:
        return parts[0]
    return lambda examples: torch.cat([part(examples) for part in parts], dim=1)
