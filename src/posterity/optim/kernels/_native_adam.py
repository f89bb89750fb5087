"""Samples, prices and steps of `Variational` over Adam on a CPU, by `native_adam.h`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posterity.optim._meter import SMALLEST, parted
from posterity.optim.gap import largest
from posterity.optim.kernels._contract import AdamKernels, Course
from posterity.optim.kernels._native import Native, Way
from posterity.optim.kernels._pointer_table import COLUMNS, Tensors


class NativeAdam(Native, AdamKernels):
    """Samples and steps; the meter runs in Python, between the passes over memory."""

    _before = 0.0  # Σ gradient² over some weights, before anybody scaled it

    def follow(self, course: Course) -> None:
        meter = course.meter
        numbers = torch.tensor([float(meter.price.ess), float(meter.examples()), course.still], dtype=torch.float64)
        torch.cat([numbers, course.deltas], out=self._given)

    def draw(
        self,
        gradients: Tensors = (),
        products: Tensors = (),
        *,
        fresh: bool = True,
        keep: bool = False,
        done: list[int] | None = None,
    ) -> None:
        if not keep:  # otherwise it is where it is wanted
            self._run(self._library.adam_draw, [] if done is None else done, int(fresh))

    def size(self, gradients: Tensors) -> None:
        self.table.set_gradients(gradients)
        self._before = self._call(self._library.adam_size)

    def scaled(self, gradients: Tensors) -> Tensor:
        self.table.set_gradients(gradients)
        now = self._call(self._library.adam_size)
        return torch.tensor(now / self._before if self._before > 0 else 1.0, dtype=torch.float64).sqrt()

    def step(
        self, gradients: Tensors, course: Course, *, held: bool = False, ahead: bool = False, done: list[int]
    ) -> bool:
        _, clipping = parted(self.scaled(gradients), course.scale)
        if self._call(self._library.adam_check):
            return False
        meter, drawn = course.meter, course.meter.price.ess
        meter.clip(clipping)
        if meter.stepped(course.lr):
            self._look(course, held)
        meter.price.ess = meter.following(course.lr, course.share)
        self.follow(course)
        taken: list[Any] = done
        self._run(self._library.adam_step, taken, Way(held, ahead))
        meter.pay(0.5 * taken[-1] / clipping, drawn)
        return True

    def _look(self, course: Course, held: bool) -> None:
        """`Variational._look`."""
        meter = course.meter
        meter.rescale()
        if not course.given:
            sizes = self.table.table[:, COLUMNS.index("size")]
            squares = (self._of_tensors(self._library.adam_squares, held) / sizes).clamp_min(SMALLEST)
            course.deltas.copy_(course.quiet / (meter.price.n * squares))
        self.follow(course)
        meter.total = torch.full_like(meter.total, self._call(self._library.adam_effective))
        if meter.follows:
            doing = torch.full_like(meter.total, self._call(self._library.adam_own_doing, int(held)))
            gains = self._of_tensors(self._library.adam_growing, held)[self.table.matrices > 0]
            meter.learn_gap(doing, largest(gains), course.lr)

    def _of_tensors(self, function: Any, held: bool) -> Tensor:
        """What a function of the library finds for each tensor."""
        self._call(function, int(held))
        return self._sums[: len(self.table.entries)]

    def _call(self, function: Any, *arguments: Any) -> Any:
        found: list[Any] = []
        self._run(function, found, *arguments)
        return found[0]
