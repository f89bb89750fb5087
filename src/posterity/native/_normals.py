"""Standard normals of the counter generator in C, for tensors that are large enough to be worth it."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from posterity.native import _library

HEADERS = Path(__file__).parent
SOURCE = HEADERS / "normals.c"
GRAIN = 1 << 14  # normals that are worth a thread

Rounds = tuple[tuple[int, int], ...]


def definitions(half: int, rounds: Rounds) -> list[str]:
    """The layout of the noise and the rounds of its hash, as macros of `noise.h`."""
    shifts = [f"S{i}={shift}" for i, (shift, _) in enumerate(rounds, 1)]
    return [f"HALF={half}", *shifts, *(f"M{i}={multiplier}u" for i, (_, multiplier) in enumerate(rounds, 1))]


@cache
def _library_of(half: int, rounds: Rounds) -> ctypes.CDLL | None:
    try:
        return _library.load(SOURCE, definitions(half, rounds))
    except _library.NoLibrary:
        return None


def draw(words: tuple[int, int], start: int, count: int, half: int, rounds: Rounds) -> Tensor | None:
    """Normals for the indices start .. start + count − 1 of one parameter, in float32; None without a compiler.

    Args:
        words: Of the parameter's key.
        start: The first index.
        count: How many.
        half: Half a block of noise.
        rounds: Of the hash.
    """
    library = _library_of(half, rounds)
    if library is None:
        return None
    noise, (a, b) = torch.empty(count, dtype=torch.float32), (word & 0xFFFFFFFF for word in words)
    threads = max(1, min(torch.get_num_threads(), count // GRAIN))
    numbers = ctypes.c_int64(start), ctypes.c_int64(count), ctypes.c_uint32(a), ctypes.c_uint32(b), threads
    library.draw(ctypes.c_void_p(noise.data_ptr()), *numbers)
    return noise
