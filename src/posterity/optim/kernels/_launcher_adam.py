"""Launching the Triton kernels of `Variational` over Adam: a sample, its price, a step, and the meter beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from posterity.optim.kernels._contract import AdamKernels, Course
from posterity.optim.kernels._fused import SOME, TOGETHER, TritonKernels
from posterity.optim.kernels._meter_table import MeterTable
from posterity.optim.kernels._pointer_table import Entry, Marks, Tensors

PART = 1 << 16  # weights that one program looks at
LANES = 1024  # numbers that a program works on at a time
PARTS = 64  # of the products of all blocks


class AdamLauncher(TritonKernels, AdamKernels):
    """The Triton kernels at work on one table; nothing of a step is known to the host."""

    def __init__(self, entries: Sequence[Entry], marks: Sequence[Marks]) -> None:
        from posterity.optim.kernels import _triton_adam, _triton_looks, _triton_meter

        super().__init__(entries, marks)
        self._adam, self._meters, self._looks = _triton_adam, _triton_meter, _triton_looks
        device, count = self.table.device, len(entries)
        self.meter = MeterTable(device)
        self._before, self._now = (torch.zeros(count, dtype=torch.float32, device=device) for _ in range(2))
        self._parts, self._starts = parts_of(entries, device)
        sums = (torch.zeros(len(self._parts), dtype=torch.float32, device=device) for _ in range(4))
        self._squares, *self._looked_at = sums
        blocks = [len(launch.blocks) for launch in self.table.launches]
        self._products = torch.zeros(sum(blocks), dtype=torch.float32, device=device)
        self._sums = self._products.split(blocks)
        self._partial = torch.zeros(PARTS, dtype=torch.float64, device=device)
        self._deltas = self._quiet = self._before

    def follow(self, course: Course) -> None:
        self.meter.follow(course)
        if self._deltas is not course.deltas:
            self._deltas, self._quiet = course.deltas, course.quiet
            self._bound.clear()

    def catch_up(self) -> None:
        self.meter.catch_up()

    def draw(
        self,
        gradients: Tensors = (),
        products: Tensors = (),
        *,
        fresh: bool = True,
        keep: bool = False,
        done: list[int] | None = None,
    ) -> None:
        table, meter = self.table, self.meter
        with self._device():
            every = (table.table, table.marks, table.numbers.tensor, table.keys, self._facts, self._deltas)
            given = (*every, meter.numbers, meter.constants.tensor, len(table.entries), len(table.marks))
            self._launch(self._meters.widths, 0, 1, given, ADVANCE=int(fresh), KEEP=keep, LANES=256)
            self._place(done, keep=keep, summed=False, scaled=True)

    def size(self, gradients: Tensors) -> None:
        self._size(gradients, self._before)

    def scaled(self, gradients: Tensors) -> Tensor:
        self._size(gradients, self._now)
        then, now = self._before.sum(), self._now.sum()
        return torch.where(then > 0, now / then, 1.0).sqrt()

    def _size(self, gradients: Tensors, sizes: Tensor) -> None:
        self.table.set_gradients(gradients)
        which = int(sizes is self._now)
        with self._device():
            given = (self.table.table, self.table.gradients.tensor, sizes)
            self._launch(self._meters.size, 0, len(sizes), given, which=which, warps=SOME // 256, SOME=SOME)

    def step(
        self, gradients: Tensors, course: Course, *, held: bool = False, ahead: bool = False, done: list[int]
    ) -> bool:
        self._size(gradients, self._now)
        if course.scale is not None:
            self._before /= course.scale.square()  # as if nobody had multiplied the loss
        with self._device():
            self._prepare(held)
            self._update(held, ahead)
        done.append(0)
        self.meter.stepped(course)
        return True

    def _prepare(self, held: bool) -> None:
        """Look at gradients, and at all widths if it is time; then λ and the numbers of every tensor."""
        table, kernels, entries, groups = self.table, self._meters, len(self.table.entries), len(self.table.marks)
        numbers, meter, constants = table.numbers.tensor, self.meter.numbers, self.meter.constants.tensor
        given: tuple[Any, ...]
        for number, (_, _, blocks) in enumerate(table.launches):
            given = (table.table, blocks, table.gradients.tensor, table.flags, len(blocks))
            self._launch(self._steps.check, number, -(-len(blocks) // TOGETHER), given, TOGETHER=TOGETHER)
        given = (self._before, self._now, meter, constants, numbers, table.marks, table.flags, entries, groups)
        self._launch(kernels.begin_step, 0, 1, given, LANES=256)
        parts, how = len(self._parts), {"PART": PART, "LANES": LANES}
        given = (table.table, self._parts, meter, self._squares)
        self._launch(self._looks.look_at_means, 0, parts, given, HELD=held, **how)
        gradients, sums = table.gradients.tensor, self._looked_at
        given = (table.table, self._parts, self._starts, numbers, meter, constants, self._deltas, self._quiet)
        self._launch(self._looks.look_at_widths, 0, parts, (*given, self._squares, gradients, *sums), HELD=held, **how)
        given = (table.table, table.marks, numbers, gradients, table.keys, self._facts, self._deltas)
        given = (*given, meter, constants, *sums, self._starts, table.matrices, table.flags, entries, groups, parts)
        self._launch(kernels.plan, 0, 1, given, LANES=256)

    def _update(self, held: bool, ahead: bool) -> None:
        """Move everything, and pay for the sample."""
        table, kernels = self.table, self._meters
        for number, (_, _, blocks) in enumerate(table.launches):
            given = (table.table, blocks, table.gradients.tensor, table.keys, self._facts, self._sums[number])
            self._launch(self._adam.adam, number, len(blocks), given, AHEAD=ahead, HELD=held)
        meter, counts = (self.meter.numbers, self.meter.constants.tensor), (len(self._products), len(table.entries))
        paid = (self._products, self._partial, self._facts, *meter, table.flags, *counts)
        self._launch(kernels.end_step, 0, PARTS, paid, AHEAD=ahead, PARTS=PARTS, LANES=LANES)


def parts_of(entries: Sequence[Entry], device: torch.device) -> tuple[Tensor, Tensor]:
    """All tensors in parts, as pairs (tensor, number of the part), and where those of each tensor begin."""
    counts = torch.tensor([-(-entry.tensors["p"].numel() // PART) for entry in entries])
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    tensors = torch.arange(len(entries)).repeat_interleave(counts)
    pairs = torch.stack([tensors, torch.arange(len(tensors)) - starts[tensors]], dim=1)
    return pairs.to(device, torch.int32), starts.to(device, torch.int32)
