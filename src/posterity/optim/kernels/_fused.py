"""Launching the Triton kernels of a variational optimizer: a sample, its removal, a step."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from posterity.optim.kernels._contract import IVONKernels, Kernels
from posterity.optim.kernels._pointer_table import FACTS, Entry, Marks, Tensors

WARPS = 4  # 128 threads: each has four numbers of each half of a noise block
TOGETHER = 4  # blocks whose gradients one program looks at
SOME = 4096  # weights of a tensor that its statistics are measured on


@cache
def available() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None


def launchable(device: torch.device) -> bool:
    """Whether kernels run on a device: on a GPU, or anywhere in Triton's interpreter."""
    return available() and (device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1")


class TritonKernels(Kernels):
    """Triton kernels at work on one table."""

    def __init__(self, entries: Sequence[Entry], marks: Sequence[Marks]) -> None:
        from posterity.optim.kernels import _triton_sample, _triton_step

        super().__init__(entries, marks)
        self._samples, self._steps = _triton_sample, _triton_step
        self._facts = torch.zeros(len(entries), len(FACTS), dtype=torch.float32, device=self.table.device)
        self._bound: dict[Any, Callable[[], None]] = {}

    def restore(self, done: list[int], *, keep: bool = False) -> None:
        with self._device():
            for number, (_, _, blocks) in enumerate(self.table.launches):
                if number >= len(done):
                    self._launch(self._samples.restore, number, len(blocks), (self.table.table, blocks), KEEP=keep)
                    done.append(number)

    def _place(self, done: list[int] | None, *, keep: bool, summed: bool, scaled: bool) -> None:
        """Put samples in place whose keys and widths are there; `scaled` for a curvature that is to be multiplied."""
        table, how = self.table, {"KEEP": keep, "SUMMED": summed, "SCALED": scaled}
        for number, (_, _, blocks) in enumerate(table.launches):
            given = (table.table, blocks, table.gradients.tensor, table.products.tensor, table.keys, self._facts)
            self._launch(self._samples.sample, number, len(blocks), given, **how)
            if done is not None:
                done.append(number)

    def _launch(
        self,
        kernel: Any,
        number: int,
        programs: int,
        arguments: tuple[Any, ...],
        *,
        warps: int = WARPS,
        which: int = 0,
        **options: Any,
    ) -> None:
        """Start a kernel on the tensors of one launch; its arguments are the same ones every time."""
        key = (kernel.__name__, number, which, *options.values())
        bound = self._bound.get(key)
        if bound is not None:
            bound()
            return
        kind = self.table.launches[number].kind
        every = {name.upper(): value for name, value in kind._asdict().items()} | options
        every["DTYPE"] = _triton_dtype(kind.dtype)
        constants = {name: every[name] for name in kernel.arg_names[len(arguments) :]}
        compiled = kernel[programs,](*arguments, **constants, num_warps=warps, enable_fp_fusion=True)
        if compiled is not None:  # as Triton's interpreter has it: nothing is
            # Triton looks at every argument to find what it has compiled for them, which takes longer than the rest.
            addresses = [a.data_ptr() if isinstance(a, Tensor) else a for a in arguments]
            self._bound[key] = partial(compiled[programs, 1, 1], *addresses, *constants.values())

    def _device(self) -> AbstractContextManager[Any]:
        device = self.table.device
        if device.type != "cuda" or device.index == torch.cuda.current_device():
            return nullcontext()
        return torch.cuda.device(device)


class Launcher(TritonKernels, IVONKernels):
    """Samples and steps of IVON."""

    def draw(
        self,
        gradients: Tensors = (),
        products: Tensors = (),
        *,
        fresh: bool = True,
        keep: bool = False,
        done: list[int] | None = None,
    ) -> None:
        table = self.table
        if products:
            table.set_gradients(gradients, products)
        with self._device():
            counts = len(table.entries), len(table.marks)
            every = (table.table, table.marks, table.numbers.tensor, table.keys, self._facts, *counts)
            self._launch(self._samples.draw, 0, 1, every, ADVANCE=int(fresh), LANES=256)
            self._place(done, keep=keep, summed=bool(products), scaled=False)

    def step(
        self,
        gradients: Tensors,
        products: Tensors = (),
        *,
        sampled: bool = True,
        held: bool = False,
        ahead: bool = False,
        done: list[int] | None = None,
    ) -> None:
        table, kernels = self.table, self._steps
        table.set_gradients(gradients, products)
        pointers, shared = table.gradients.tensor, (table.keys, self._facts, table.flags)
        sums, how = table.products.tensor, {"HELD": held, "SAMPLED": sampled, "SUMMED": bool(products)}
        with self._device():
            for number, (_, _, blocks) in enumerate(table.launches):
                about = (table.table, blocks, pointers, table.flags, len(blocks))
                self._launch(kernels.check, number, -(-len(blocks) // TOGETHER), about, TOGETHER=TOGETHER)
            for number, (_, members, _) in enumerate(table.launches):
                tensor = (table.table, pointers, sums, table.numbers.tensor, table.marks, *shared)
                each = (*tensor, members, len(table.marks))
                self._launch(kernels.measure, number, len(members), each, warps=SOME // 256, SOME=SOME, **how)
            for number, (_, _, blocks) in enumerate(table.launches):
                arguments = (table.table, blocks, pointers, sums, *shared)
                self._launch(kernels.step, number, len(blocks), arguments, AHEAD=ahead, **how)
        if done is not None:
            done.append(0)


@cache
def _triton_dtype(dtype: torch.dtype) -> Any:
    import triton.language as tl  # type: ignore[import-untyped]

    return {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}[dtype]
