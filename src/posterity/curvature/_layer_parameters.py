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

from posterity.curvature._gradients import Gradient, GradientRows, Lookup, Outer
from posterity.curvature.covariance import Bases, rotate, times_rows


class LayerParameter(ABC):
    """How one parameter takes part in its layer, whose output is linear in it."""

    shape: torch.Size
    plain: bool  # its Kronecker factor of the signals is the plain sum of b bᵀ

    @abstractmethod
    def output_basis(self, bases: Bases, roots: int) -> Tensor | None:
        """The basis in which signals are wanted and tangents given, if that is not the one of the layer."""

    @abstractmethod
    def gradient(self, b: Tensor, examples: slice, bases: Bases | None = None) -> Gradient:
        """Per-example gradients from signals, in the coordinates of `bases` where they are given."""

    @abstractmethod
    def tangent(self, direction: Tensor, examples: slice) -> Tensor:
        """Change (n, T, out) of the layer's output when example n moves the parameter by `direction` (n, numel)."""

    @abstractmethod
    def spread(self, b: Tensor, variance: Tensor, examples: slice, bases: Bases | None = None) -> Tensor:
        """The same for the direction Σ G_n: signals (1, n, T, out) in, tangents (n, T, out) out."""

    @abstractmethod
    def numbers(self, roots: int, turned: bool = False) -> int:
        """How many numbers an example needs while its gradients are in use, perhaps turned into Kronecker bases."""

    def pairs(self, roots: int, others: int) -> int:
        """How many numbers an example needs while its gradients meet those of so many others."""
        return self.numel + others * roots * (roots + self.shape[0])

    def output_variance(self, variance: Tensor, bases: Bases | None = None) -> Tensor | None:
        """The variances (n, out) of the layer's output when the parameter has variances S.

        Only where a layer meets each example once: elsewhere the output is not a vector of independent numbers.
        """
        return None

    def signal_factor(self, b: Tensor, reduce: bool) -> Tensor:
        """Sum of b bᵀ over roots, examples and positions; with `reduce`, positions are summed first."""
        return outer(b.sum(2) if reduce else b)

    @property
    def numel(self) -> int:
        return self.shape.numel()


class WeightParameter(LayerParameter):
    """A parameter with a Kronecker factor for the layer's inputs beside the one for its signals."""

    input_axis: ClassVar[int] = 1  # which of the two it is

    @abstractmethod
    def input_factor(self, examples: slice, reduce: bool) -> tuple[Tensor, int]:
        """Sum of a aᵀ over examples and positions, and how many there were; with `reduce`, of their means."""


@dataclass(frozen=True)
class MatrixParameter(WeightParameter):
    """The weight of y_t = W a_t (of each group of channels): G = Σ_t b_t a_tᵀ."""

    shape: torch.Size
    inputs: Callable[[slice], Tensor]  # a, (n, T, groups, in)
    positions: int
    groups: int = 1
    plain: bool = True

    @property
    def rank_one(self) -> bool:
        return self.positions == 1 and self.groups == 1

    def output_basis(self, bases: Bases, roots: int) -> Tensor | None:
        return None if self._turns_rows(roots) else bases[0]

    def _turns_rows(self, roots: int) -> bool:
        """Whether gradients are turned once written out, and not before.

        Always with groups, which the basis of the outputs mixes; otherwise where it takes fewer products than turning
        inputs and signals at all positions.
        """
        if self.rank_one or self.groups > 1:
            return self.groups > 1
        outputs, inputs = self.shape[0], self.numel // self.shape[0]
        return roots * self.numel * (outputs + inputs) < self.positions * (inputs**2 + roots * outputs**2)

    def activations(self, examples: slice, bases: Bases | None = None) -> Tensor:
        """Inputs a (n, T, groups, in)."""
        a = self.inputs(examples)
        return a if bases is None else a @ bases[1]

    def gradient(self, b: Tensor, examples: slice, bases: Bases | None = None) -> Gradient:
        if bases is not None and self._turns_rows(len(b)):
            return GradientRows(rotate(self._rows(b, self.activations(examples)), bases))
        a = self.activations(examples, bases)
        return Outer(b[:, :, 0], a[:, 0, 0]) if self.rank_one else GradientRows(self._rows(b, a))

    def tangent(self, direction: Tensor, examples: slice) -> Tensor:
        return self._outputs(direction, self.activations(examples))

    def spread(self, b: Tensor, variance: Tensor, examples: slice, bases: Bases | None = None) -> Tensor:
        late = bases is not None and self._turns_rows(len(b))
        a = self.activations(examples, None if late else bases)  # once for both ways
        return self._outputs(times_rows(self._rows(b, a)[0], variance, bases if late else None), a)

    def output_variance(self, variance: Tensor, bases: Bases | None = None) -> Tensor | None:
        if not self.rank_one:
            return None
        squared = self.activations(slice(None), bases)[:, 0, 0].square()
        return squared @ variance.reshape(-1, squared.shape[-1]).T

    def input_factor(self, examples: slice, reduce: bool) -> tuple[Tensor, int]:
        a = self.activations(examples)
        a = a.mean(1) if reduce else a
        return outer(a), a.shape[:-1].numel()

    def numbers(self, roots: int, turned: bool = False) -> int:
        outputs, inputs = self.shape[0], self.numel // self.shape[0]
        written_out = 0 if self.rank_one else roots * self.numel
        return written_out + self.positions * (self.groups * inputs + roots * outputs)

    def _rows(self, b: Tensor, a: Tensor) -> Tensor:
        # One product for all roots: broadcast over them, the inputs would be copied for each.
        roots = b.unflatten(-1, (self.groups, -1)).permute(1, 3, 0, 4, 2)  # (n, groups, R, out, T)
        rows = (roots.flatten(2, 3) @ a.transpose(1, 2)).unflatten(2, (len(b), -1))
        return rows.permute(2, 0, 1, 3, 4).flatten(2)

    def _outputs(self, direction: Tensor, a: Tensor) -> Tensor:
        weight = direction.unflatten(-1, (self.groups, -1, a.shape[-1]))  # (n, groups, out, in)
        return (a.transpose(1, 2) @ weight.mT).transpose(1, 2).flatten(2)


@dataclass(frozen=True)
class VectorParameter(LayerParameter):
    """A bias (x = 1) or the scale of a normalisation (x its normalised input): y_t = p ∘ x_t, G = Σ_t b_t ∘ x_t."""

    shape: torch.Size
    inputs: Callable[[slice], Tensor] | None  # x, (n, T, out)
    positions: int
    plain: bool = False  # the bias of a weight, not the scale or shift of a normalisation

    def output_basis(self, bases: Bases, roots: int) -> Tensor | None:
        return None if self._late(bases) else bases[0]

    def gradient(self, b: Tensor, examples: slice, bases: Bases | None = None) -> Gradient:
        rows, late = self._rows(b, examples), self._late(bases)
        return GradientRows(rows if late is None else rotate(rows, late))

    def tangent(self, direction: Tensor, examples: slice) -> Tensor:
        direction = direction.unsqueeze(1)
        return direction.expand(-1, self.positions, -1) if self.inputs is None else direction * self.inputs(examples)

    def spread(self, b: Tensor, variance: Tensor, examples: slice, bases: Bases | None = None) -> Tensor:
        rows = self._rows(b, examples)[0]
        return self.tangent(times_rows(rows, variance, self._late(bases)), examples)

    def output_variance(self, variance: Tensor, bases: Bases | None = None) -> Tensor | None:
        single = self.inputs is None and self.positions == 1 and self._late(bases) is None
        return variance.reshape(1, -1) if single else None

    def numbers(self, roots: int, turned: bool = False) -> int:
        return (roots + 1) * self.numel * self.positions

    def _late(self, bases: Bases | None) -> Bases | None:
        """The bases in which gradients are turned once written out, and not signals before."""
        return bases if bases is not None and (self.inputs is not None or len(bases) > 1) else None

    def _rows(self, b: Tensor, examples: slice) -> Tensor:
        scaled = b if self.inputs is None else b * self.inputs(examples)
        return (scaled[:, :, 0] if self.positions == 1 else scaled.sum(2)).flatten(2)


@dataclass(frozen=True)
class EmbeddingParameter(WeightParameter):
    """The weight (rows, width) of an embedding: y_t = row number index_t."""

    input_axis: ClassVar[int] = 0
    shape: torch.Size
    index: Tensor  # (B, T)
    padding: int | None  # a row that is never trained
    dtype: torch.dtype
    plain: bool = False

    def output_basis(self, bases: Bases, roots: int) -> Tensor | None:
        return bases[1]

    def gradient(self, b: Tensor, examples: slice, bases: Bases | None = None) -> Gradient:
        index = self.index[examples]
        b = self._trained(b, index)
        if bases is not None:
            return GradientRows((bases[0][index].mT @ b).flatten(2))
        same = index.unsqueeze(-1) == index.unsqueeze(-2)  # (n, T, T)
        first = ~same.tril(-1).any(-1)
        return Lookup(index, (same.to(b) @ b) * first.unsqueeze(-1), self.shape)

    def tangent(self, direction: Tensor, examples: slice) -> Tensor:
        index = self.index[examples]
        table = direction.unflatten(-1, self.shape)
        return self._trained(table.gather(1, index.unsqueeze(-1).expand(-1, -1, self.shape[1])), index)

    def spread(self, b: Tensor, variance: Tensor, examples: slice, bases: Bases | None = None) -> Tensor:
        index = self.index[examples]
        b = self._trained(b[0], index)
        if bases is None:
            same = (index.unsqueeze(-1) == index.unsqueeze(-2)).to(b)
            return variance[index] * (same @ b)
        turned = bases[0][index]  # (n, T, rows)
        return self._trained(turned @ ((turned.mT @ b) * variance), index)

    def input_factor(self, examples: slice, reduce: bool) -> tuple[Tensor, int]:
        index = self.index[examples]
        one_hot = self._trained(F.one_hot(index, self.shape[0]).to(self.dtype), index)
        a = one_hot.mean(1) if reduce else one_hot
        return outer(a), a.shape[:-1].numel()

    def signal_factor(self, b: Tensor, reduce: bool) -> Tensor:
        return super().signal_factor(self._trained(b, self.index), reduce)

    def numbers(self, roots: int, turned: bool = False) -> int:
        steps = self.index.shape[1]
        looked_up = steps * (2 * roots * self.shape[1] + steps)
        return looked_up + (roots * self.numel + steps * self.shape[0] if turned else 0)

    def pairs(self, roots: int, others: int) -> int:
        return others * self.index.shape[1] * (self.index.shape[1] + roots * self.shape[1])

    def _trained(self, y: Tensor, index: Tensor) -> Tensor:
        """Zero where the row that is never trained is looked up."""
        return y if self.padding is None else y * (index != self.padding).unsqueeze(-1)


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
