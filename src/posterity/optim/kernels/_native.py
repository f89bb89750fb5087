"""Samples and steps of a variational optimizer on a CPU, by `native.c`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from posterity import native
from posterity.noise import HALF, ROUNDS
from posterity.optim.kernels._contract import IVONKernels, Kernels, largest
from posterity.optim.kernels._fused import SOME
from posterity.optim.kernels._pointer_table import ADAM_NUMBERS, COLUMNS, DTYPES, MARKS, NUMBERS, Entry, Marks, Tensors

SOURCE = Path(__file__).with_name("native.c")
GRAIN = 16  # blocks of noise that are worth a thread


class NativeWork(ctypes.Structure):
    """`Work` of `native_memory.h`."""

    _arrays = (
        *("table", "marks", "numbers", "gradients", "products", "kinds", "blocks", "keys", "measured"),
        *("widths", "sums", "given"),
    )
    _fields_ = (
        *((name, ctypes.c_void_p) for name in _arrays),
        *((name, ctypes.c_int64) for name in ("tensors", "groups", "count")),
    )


class Way(ctypes.Structure):
    """`Way` of `native_sample.h`."""

    _fields_ = tuple((name, ctypes.c_int) for name in ("held", "ahead", "sampled", "summed"))


def definitions() -> list[str]:
    """The layout of the table, the rounds of the hash and some sizes, as macros of `native.c`."""
    tables = {"AT": COLUMNS, "NUMBER": NUMBERS, "ADAM": ADAM_NUMBERS, "MARK": MARKS}
    places = [f"{table}_{name.upper()}={i}" for table, names in tables.items() for i, name in enumerate(names)]
    widths = [f"{table}_WIDTH={len(names)}" for table, names in tables.items()]
    sizes = [f"SOME={SOME}", f"LARGEST={largest(torch.float32)}"]
    return [*places, *widths, *native.definitions(HALF, ROUNDS), *sizes]


@cache
def library() -> ctypes.CDLL | str:
    """The library, compiled at the first call on a machine; or why there is none."""
    try:
        found = native.load(SOURCE, definitions(), native.HEADERS)
    except native.NoLibrary as why:
        return str(why)
    for name in ("adam_size", "adam_effective", "adam_own_doing", "adam_step"):
        getattr(found, name).restype = ctypes.c_double
    return found


class Native(Kernels):
    """Functions of `native.c` at work on one table.

    While the mean is in place, the buffers hold the last sample: nothing is drawn again.
    """

    def __init__(self, entries: Sequence[Entry], marks: Sequence[Marks]) -> None:
        found = library()
        assert isinstance(found, ctypes.CDLL), found
        super().__init__(entries, marks)
        self._library, table = found, self.table
        kinds = [[DTYPES.index(entry.kind.dtype), int(entry.squares)] for entry in entries]
        self._kinds = torch.tensor(kinds, dtype=torch.int32)
        self._blocks = torch.cat([launch.blocks for launch in table.launches])
        count, some = len(self._blocks), len(entries)
        self._measured, self._widths = (torch.zeros(some, k, dtype=torch.float32) for k in (2, 4))
        self._sums, self._given = (torch.zeros(n, dtype=torch.float64) for n in (max(count, some), some + 3))
        given = (table.table, table.marks, table.numbers.tensor, table.gradients.tensor, table.products.tensor)
        own = (self._kinds, self._blocks, table.keys, self._measured, self._widths, self._sums, self._given)
        self._work = NativeWork(*(t.data_ptr() for t in (*given, *own)), some, len(marks), count)

    def restore(self, done: list[int], *, keep: bool = False) -> None:
        if not done:
            self._run(self._library.swap, done)  # so that samples are kept in any case

    def undo(self, done: list[int]) -> None:
        super().undo(list(range(len(self.table.launches))) if done else [])

    def _run(self, function: Any, done: list[Any], *arguments: Any) -> None:
        """Call a function of the library and write down what it returned.

        A list that is extended by a map of a C function does both before Python looks for signals again.
        """
        given = (ctypes.byref(self._work), *arguments, self._threads())
        done.extend(map(function, *([value] for value in given)))

    def _threads(self) -> int:
        return max(1, min(torch.get_num_threads(), len(self._blocks) // GRAIN))


class NativeLauncher(Native, IVONKernels):
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
        if products:
            self.table.set_gradients(gradients, products)
        if not keep:  # otherwise it is where it is wanted
            self._run(self._library.draw, [] if done is None else done, int(fresh), int(bool(products)))

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
        self.table.set_gradients(gradients, products)
        self._run(self._library.step, [] if done is None else done, Way(held, ahead, sampled, bool(products)))
