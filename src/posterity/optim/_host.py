"""Samples and steps of all parameters on a CPU, in few calls: state lies in flat tables, one row for a noise block.

State and buffers of a parameter are views of the tables, padded to whole rows, so that pointwise work runs over chunks
of rows that fit the cache, however the network is cut into tensors. Parameters and gradients belong to others: they
are copied into their chunk and back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from posterity.noise import HALF, Key, many_words
from posterity.optim._samples import Kept
from posterity.optim.kernels import Numbers, Views, compiled, eager

if TYPE_CHECKING:
    from posterity.optim._variational import VariationalOptimizer

ROW = 2 * HALF
CHUNK = 64  # rows: large enough for torch to use its threads
LARGE = 256  # rows, where a call of compiled code costs more than a cache miss


def usable(parameters: Sequence[Tensor]) -> bool:
    """Whether the tables can hold these parameters: whole, dense, in float32 and row-major order."""
    return all(
        p.device.type == "cpu"
        and type(p.data) is Tensor
        and p.dtype == torch.float32
        and p.is_contiguous()
        and p.ndim > 0
        and p.numel() > 0
        for p in parameters
    )


@dataclass(frozen=True)
class Segment:
    """Entries begin .. end − 1 of a parameter, and where they stand in a chunk."""

    parameter: int
    begin: int
    end: int
    offset: int

    def of(self, t: Tensor) -> Tensor:
        return t.view(-1)[self.begin : self.end]

    def within(self, chunk: Tensor) -> Tensor:
        return chunk.view(-1)[self.offset : self.offset + self.end - self.begin]


@dataclass(frozen=True)
class Chunk:
    """Some rows of all tables, and the segments of parameters that belong to them."""

    rows: slice
    views: Views
    gradient: Tensor
    segments: list[Segment]
    parameters: list[Tensor]

    def parts(self, table: Tensor) -> list[Tensor]:
        """The segments within rows of a table."""
        return [segment.within(table) for segment in self.segments]


class Tables:
    """The state of an optimizer in flat tables, and its arithmetic over them.

    Args:
        optimizer: The optimizer; its state moves into the tables.
        trainable: Number among all, group number and parameter.
    """

    def __init__(self, optimizer: VariationalOptimizer, trainable: Sequence[tuple[int, int, Tensor]]) -> None:
        self._optimizer = optimizer
        self._parameters = [p for _, _, p in trainable]
        self._groups = [number for _, number, _ in trainable]
        self._indices = [index for index, _, _ in trainable]
        counts = torch.tensor([-(-p.numel() // ROW) for p in self._parameters])
        self._owner = torch.repeat_interleave(counts)  # the parameter of each row
        starts = counts.cumsum(0) - counts
        self._pairs = ((torch.arange(int(counts.sum())) - starts[self._owner]) * HALF).to(torch.int32)[:, None]
        self._tables, self._vectors = self._move(starts.tolist(), int(counts.sum()))
        self._kernels = compiled if optimizer.fused else eager
        self._chunks = self._cut(starts.tolist(), int(counts.sum()))
        self._versions: list[int] = []  # of the parameters when the means were put back

    def _move(self, starts: list[int], rows: int) -> tuple[Views, Views]:
        """Make state and samples views of tables; padding is 1, which is a good precision."""
        tables: Views = {}
        vectors: Views = {}
        kept, self.means = self._optimizer._samples.kept, dict[Tensor, Tensor]()
        for number, (p, start) in enumerate(zip(self._parameters, starts, strict=True)):
            state, sample = self._optimizer.state[p], kept[p].buffer if p in kept else p.detach()
            moved: Views = {}
            for name, t in {"p": p.detach(), "sample": sample, **state}.items():
                if t.shape == p.shape:
                    table = tables.setdefault(name, torch.ones(rows, ROW))
                    moved[name] = table.view(-1)[start * ROW :][: p.numel()].view(p.shape).copy_(t)
                else:
                    moved[name] = vectors.setdefault(name, torch.zeros(len(starts)))[number].copy_(t)
            self.means[p], kept[p] = moved.pop("p"), Kept(moved.pop("sample"))
            state.update(moved)
        return tables, vectors

    def _cut(self, starts: list[int], rows: int) -> list[Chunk]:
        number = -(-rows // (LARGE if self._kernels is compiled else CHUNK))
        bounds = [rows * k // number for k in range(number + 1)]
        scratch = torch.zeros(-(-rows // number), ROW)
        chunks = []
        for begin, end in pairwise(bounds):
            segments = []
            for k in range(int(self._owner[begin]), int(self._owner[end - 1]) + 1):
                first, size = starts[k] * ROW, self._parameters[k].numel()
                low, high = max(begin * ROW, first), min(end * ROW, first + size)
                segments.append(Segment(k, low - first, high - first, low - begin * ROW))
            views = {name: table[begin:end] for name, table in self._tables.items()}
            parts = [s.of(self._parameters[s.parameter].detach()) for s in segments]
            chunks.append(Chunk(slice(begin, end), views, scratch[: end - begin], segments, parts))
        return chunks

    # ── samples ──────────────────────────────────────────────────────────────────────────────────────────────────

    def draw(self, *, ahead: bool = False) -> None:
        """Put a new sample in place of the means, which go into the buffers.

        Args:
            ahead: Whether the sample is not to be counted yet.
        """
        optimizer = self._optimizer
        draws = []
        for group in optimizer.param_groups:
            group["draws"] += not ahead
            draws.append((group["seed"], int(group["draws"]) + ahead))
        a, b = many_words([Key(*draws[g], 0, k) for g, k in zip(self._groups, self._indices, strict=True)])
        a, b = a[self._owner, None], b[self._owner, None]
        numbers = self._spread(self._numbers(self._groups))
        for chunk in self._chunks:
            rows, mean, theta = chunk.rows, chunk.views["p"], chunk.views["sample"]
            torch._foreach_copy_(chunk.parts(mean), chunk.parameters)
            view = {name: chunk.views[name] for name in optimizer.widths if name in chunk.views}
            counters = self._pairs[rows], a[rows], b[rows]
            self._kernels.perturb_rows(optimizer.precision, view, mean, theta, _rows(numbers, rows), counters)
            torch._foreach_copy_(chunk.parameters, chunk.parts(theta))

    def restore(self) -> None:
        """Put the means back."""
        for chunk in self._chunks:
            torch._foreach_copy_(chunk.parameters, chunk.parts(chunk.views["p"]))

    def restored(self) -> None:
        """Remember that the parameters have just been put back to their means."""
        self._versions = [p._version for p in self._parameters]

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────

    def step(self, gradients: Sequence[Tensor]) -> bool:
        """Update everything from the last sample; False if a gradient is not finite, and nothing is done."""
        if not torch.stack(torch._foreach_norm(list(gradients))).isfinite().all():
            return False
        gradients = [gradient.contiguous() for gradient in gradients]
        changed = self._versions != [p._version for p in self._parameters]
        numbers = self._spread(self._measured(gradients))
        for chunk in self._chunks:
            mean = chunk.views["p"]
            if changed:
                torch._foreach_copy_(chunk.parts(mean), chunk.parameters)
            torch._foreach_copy_(chunk.parts(chunk.gradient), [s.of(gradients[s.parameter]) for s in chunk.segments])
            view = {**chunk.views, "gradient": chunk.gradient}
            self._kernels.update_rows(self._optimizer.update, view, _rows(numbers, chunk.rows))
            torch._foreach_copy_(chunk.parameters, chunk.parts(mean))
        return True

    def _measured(self, gradients: Sequence[Tensor]) -> list[Numbers]:
        """Count the step, let the optimizer measure what it wants to, and get the numbers of each parameter."""
        optimizer = self._optimizer
        self._vectors["step"] += 1
        steps = [int(step) for step in self._vectors["step"].tolist()]
        numbers = self._numbers(list(zip(self._groups, steps, strict=True)))
        measures = [step <= optimizer.period or step % optimizer.period == 0 for step in steps]
        for k, (p, gradient) in enumerate(zip(self._parameters, gradients, strict=True)):
            if measures[k]:
                numbers[k] = dict(numbers[k])
                tensors = {"p": p.detach(), **optimizer._tensors(p), "gradient": gradient}
                tensors |= optimizer._samples.tensors(p)
                optimizer.observe(p, tensors, optimizer.param_groups[self._groups[k]], numbers[k])
            else:
                optimizer.forget(p, numbers[k]["rho2"])
        return numbers

    def _numbers(self, kinds: list[Any]) -> list[Numbers]:
        """The numbers of each parameter, computed once for all parameters of a kind unless they are measured."""
        optimizer, found = self._optimizer, dict[Any, Numbers]()
        numbers = []
        for kind, p, group in zip(kinds, self._parameters, self._groups, strict=True):
            if kind not in found or any(isinstance(value, Tensor) for value in found[kind].values()):
                found[kind] = optimizer.numbers(p, optimizer.param_groups[group])
            numbers.append(found[kind])
        return numbers

    def _spread(self, numbers: list[Numbers]) -> Numbers:
        """Numbers for each row: a column, or one number where all rows have the same and nothing is compiled."""
        if self._kernels is eager and all(other == numbers[0] for other in numbers):
            return numbers[0]
        values = torch.tensor([[float(value) for value in each.values()] for each in numbers])
        return dict(zip(numbers[0], values[self._owner, :, None].unbind(1), strict=True))


def _rows(numbers: Numbers, rows: slice) -> Numbers:
    return {name: value[rows] if isinstance(value, Tensor) and value.ndim else value for name, value in numbers.items()}
