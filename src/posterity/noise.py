"""The counter generator: noise as a function of (seed, step, sample, parameter, index).

No state is kept. The perturbation of weight j is a hash of where it stands, so the same numbers come out on one
process or many, on CPU or GPU, today or when a sample is drawn again. The integer bits are identical everywhere;
the normals agree to a few units in the last place.

Layout: indices come in blocks of ``2 * HALF``; index j of the first half and j + HALF of the second share one
Box-Muller pair, so both halves are written contiguously.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

HALF = 512
_MASK = 0xFFFFFFFF


class Key(NamedTuple):
    """Where a piece of noise belongs. Optimizers count steps from 1; step 0 belongs to posteriors."""

    seed: int
    step: int = 0
    sample: int = 0
    parameter: int = 0


def _mix_int(x: int) -> int:
    """The 32-bit finaliser of `_mix`, on Python integers."""
    x ^= x >> 16
    x = x * 0x7FEB352D & _MASK
    x ^= x >> 15
    x = x * 0x846CA68B & _MASK
    return x ^ (x >> 16)


def words(key: Key) -> tuple[int, int]:
    """Two signed 32-bit words that stand for a key: what a kernel needs besides the index."""
    a, b = 0x9E3779B9, 0x85EBCA6B
    for number in (*key,):
        for part in (number & _MASK, (number >> 32) & _MASK):
            a = _mix_int((a ^ part) + 0x6A09E667 & _MASK)
            b = _mix_int((b + part & _MASK) ^ a)
    return _signed(a), _signed(b)


def _signed(x: int) -> int:
    return x - (1 << 32) if x >= 1 << 31 else x


_M1, _M2 = _signed(0x7FEB352D), _signed(0x846CA68B)


def _mix(x: Tensor) -> Tensor:
    """A 32-bit bijection with low bias (xorshift-multiply); int32 wraps, and shifts are masked to be logical."""
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * _M1
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * _M2
    return x ^ ((x >> 16) & 0xFFFF)


def bits(key: Key, start: int, count: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Two independent int32 words for each of the pair counters start .. start + count − 1."""
    a, b = words(key)
    low = torch.arange(start, start + count, dtype=torch.int64, device=device)
    high = _mix_int((start >> 32) & _MASK)
    counter = (low & _MASK).to(torch.int32) if start + count > 2**31 else low.to(torch.int32)
    first = _mix(_mix(counter + a) ^ _signed(_MASK & (b + high)))
    return first, _mix(first + a)


def normal(
    key: Key, count: int, *, start: int = 0, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> Tensor:
    """Standard normals for the global indices start .. start + count − 1 of one parameter."""
    block = start // (2 * HALF)
    blocks = -(-(start + count) // (2 * HALF)) - block
    first, second = bits(key, block * HALF, blocks * HALF, device)
    # (u + ½)/2³² lies strictly inside (0, 1): 24 bits are what float32 can hold exactly.
    radius = (((first >> 8) & 0xFFFFFF).to(torch.float32) + 0.5).mul_(2.0**-24).log_().mul_(-2.0).sqrt_()
    angle = ((second >> 8) & 0xFFFFFF).to(torch.float32).mul_(2.0 * math.pi * 2.0**-24)
    pair = torch.stack((radius * angle.cos(), radius * angle.sin()))  # 2 x (blocks * HALF)
    flat = pair.view(2, blocks, HALF).transpose(0, 1).reshape(-1)
    offset = start - block * 2 * HALF
    return flat[offset : offset + count].to(dtype)
