"""Launching the Triton kernels of a variational optimizer: a sample, its removal, a step."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from posterity.optim.kernels._addresses import NUMBERS, Entry, Kind, Table

WARPS = 4  # 128 threads: each has four numbers of each half of a noise block
SOME = 4096  # weights of a tensor that its statistics are measured on


@cache
def available() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None


def launchable(device: torch.device) -> bool:
    """Whether kernels run on a device: on a GPU, or anywhere in Triton's interpreter."""
    return available() and (device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1")


class Launcher:
    """The kernels at work on one table.

    Args:
        entries: The parameters; their tensors must stay where they are.
        marks: Seed, number of draws and number of skipped steps of each group, the last two counted on the device.
    """

    def __init__(self, entries: Sequence[Entry], marks: Sequence[tuple[int, Tensor, Tensor]]) -> None:
        self.table = Table(entries, marks)

    def set_numbers(self, numbers: list[list[float]]) -> None:
        """Take the numbers of each group, in the order of `NUMBERS`."""
        self.table.numbers.set(numbers)

    def scale_lr(self, group: int, lr: Tensor) -> None:
        """Multiply the learning rate of a group with a tensor, which may be on the device."""
        self.table.numbers.multiply((group, NUMBERS.index("lr")), lr)

    def draw(self, *, again: bool = False) -> None:
        """Put a new sample in place of the means, which go into the buffers; or write the last one there `again`."""
        from posterity.optim.kernels import _triton_sample as kernels

        table = self.table
        with self._device():
            kernels.draw[1,](
                table.table, table.marks, table.keys, len(table.entries), len(table.marks), int(not again), LANES=128
            )
            for kind, _, blocks in table.launches:
                arguments = (table.table, table.numbers.tensor, table.keys, blocks)
                options = self._options(kind, "PRIOR", "TRANSPOSED", "ALIGNED")
                kernels.sample[len(blocks),](*arguments, KEEP=again, **options)

    def restore(self) -> None:
        """Put the means back from the buffers."""
        from posterity.optim.kernels import _triton_sample as kernels

        with self._device():
            for kind, _, blocks in self.table.launches:
                kernels.restore[len(blocks),](self.table.table, blocks, **self._options(kind, "ALIGNED"))

    def step(self, gradients: Sequence[Tensor | None], *, held: bool, ahead: bool) -> None:
        """Update everything from one sample a parameter, or skip it all if a gradient is not finite.

        Args:
            gradients: Of each entry.
            held: Whether the samples are still in place.
            ahead: Whether to put the next samples in place.
        """
        from posterity.optim.kernels import _triton_step as kernels

        table = self.table
        table.set_gradients(gradients)
        addresses = (table.table, table.gradients.tensor)
        shared = (table.measured, table.keys, table.flags)
        names = ("PRIOR", "TERM", "SQUARES", "TRANSPOSED")
        with self._device():
            for kind, _, blocks in table.launches:
                kernels.check[len(blocks),](*addresses, blocks, table.flags, **self._options(kind, "ALIGNED"))
            for kind, members, _ in table.launches:
                about = (*addresses, table.numbers.tensor, table.marks, *shared, members, len(table.marks))
                options = self._options(kind, *names)
                kernels.measure[len(members),](*about, HELD=held, SOME=SOME, LANES=512, **options)
            for kind, _, blocks in table.launches:
                arguments = (*addresses, table.numbers.tensor, *shared, blocks)
                options = self._options(kind, *names, "ALIGNED")
                kernels.step[len(blocks),](*arguments, AHEAD=ahead, HELD=held, **options)

    def _device(self) -> AbstractContextManager[Any]:
        return torch.cuda.device(self.table.device) if self.table.device.type == "cuda" else nullcontext()

    def _options(self, kind: Kind, *names: str) -> dict[str, Any]:
        return {"DTYPE": _triton_dtype(kind.dtype), "num_warps": WARPS} | {
            name: getattr(kind, name.lower()) for name in names
        }


@cache
def _triton_dtype(dtype: torch.dtype) -> Any:
    import triton.language as tl  # type: ignore[import-untyped]

    return {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}[dtype]
