"""The counter generator: noise as a function of (seed, step, sample, parameter, index).

No state is kept. The perturbation of weight j is a hash of its position, so the same numbers come out on one
process or many, on CPU or GPU, today or when a sample is drawn again. The integer bits are identical everywhere;
the normals agree to a few units in the last place.

A key becomes two 32-bit words (a, b), and pair counter c becomes two words in six rounds x ← (x ⊕ (x ≫ s)) · M:

    first = rounds 2-4 of (round 1 of (c + a) + b),    second = rounds 5-6 of (first + a)

Layout: indices come in blocks of ``2 * HALF``; index j of the first half and j + HALF of the second share one
Box-Muller pair, so both halves are written contiguously.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from posterity import native
from posterity.errors import require, require_seed

HALF = 512
ROUNDS = (
    (16, 0x7FEB352D),
    (15, 0x846CA68B),
    (16, 0x9E3779B1),
    (15, 0x85EBCA77),
    (16, 0xC2B2AE3D),
    (15, 0x27D4EB2F),
)
(_SHIFT, _FACTOR), (_SHIFT_2, _FACTOR_2) = ROUNDS[:2]
_MASK = 0xFFFFFFFF
APART = 7_340_033  # away from the small numbers that people take for seeds
LARGE = 1 << 17  # normals that are worth a compiler, on a CPU


class Key(NamedTuple):
    """Where a piece of noise belongs. Optimizers count steps from 1; step 0 belongs to posteriors."""

    seed: int
    step: int = 0
    sample: int = 0
    parameter: int = 0


def seeded(seed: int) -> torch.Generator:
    """A generator of torch's own, for a whole number of Python's or numpy's.

    Examples:
        >>> seeded("now")
        Traceback (most recent call last):
        posterity.errors.InvalidInput: seed: expected a whole number, got 'now'
    """
    require_seed(seed)
    return torch.Generator().manual_seed(int(seed))


def seeded_apart(seed: int) -> torch.Generator:
    """A generator that no user has: with the same seed, a user may have shuffled the data or planted errors in them."""
    return torch.Generator().manual_seed(own_seed(seed, APART))


def own_seed(seed: int, number: int) -> int:
    """A seed for each of many numbered things, in the 64 bits that torch takes.

    Examples:
        >>> own_seed(3, 1), own_seed(-1, 0)
        (3000010, 18446744073708551613)
    """
    return (operator.index(seed) * 1_000_003 + operator.index(number)) & 0xFFFFFFFFFFFFFFFF


def words(key: Key) -> tuple[int, int]:
    """Two signed 32-bit words that encode a key: what a kernel needs besides the index."""
    a, b = _absorb(*_common(key.seed, key.step, key.sample), key.parameter)
    return _signed(a), _signed(b)


@lru_cache(maxsize=64)
def _common(*numbers: int) -> tuple[int, int]:
    """What all parameters of a sample share; what steps share is known from the step before."""
    return _absorb(*_common(*numbers[:-1]), numbers[-1]) if numbers else (0x9E3779B9, 0x85EBCA6B)


def _absorb(a: int, b: int, number: int) -> tuple[int, int]:
    number = operator.index(number)  # numpy's integers are too narrow for what follows
    for part in (number & _MASK, (number >> 32) & _MASK):
        a = _mix((a ^ part) + 0x6A09E667 & _MASK)
        b = _mix((b + part & _MASK) ^ a)
    return a, b


def _mix(x: int) -> int:
    x = (x ^ (x >> _SHIFT)) * _FACTOR & _MASK  # no loop: this is done for every step
    x = (x ^ (x >> _SHIFT_2)) * _FACTOR_2 & _MASK
    return x ^ (x >> 16)


def _signed(x: int) -> int:
    return x - (1 << 32) if x >= 1 << 31 else x


def hash_pairs(counter: Tensor, a: Tensor | int, b: Tensor | int) -> tuple[Tensor, Tensor]:
    """The two words of each int32 pair counter, in tensor operations: int32 wraps, masks make its shifts logical."""
    first = _rounds(_rounds(counter + a, 0, 1) + b, 1, 4)
    return first, _rounds(first + a, 4, 6)


def _rounds(x: Tensor, begin: int, end: int) -> Tensor:
    for shift, multiplier in ROUNDS[begin:end]:
        x = (x ^ ((x >> shift) & (_MASK >> shift))) * _signed(multiplier)
    return x


def _hash_pairs_numpy(counter: NDArray[np.uint32], a: Any, b: Any) -> tuple[Tensor, Tensor]:
    """The same words from NumPy's unsigned integers, which need no masks and so cost a third less on a CPU."""
    x = counter + a
    shifted = np.empty_like(x)
    for number, (shift, multiplier) in enumerate(ROUNDS):
        np.right_shift(x, np.uint32(shift), out=shifted)
        x ^= shifted
        x *= np.uint32(multiplier)
        if number == 0:
            x += b
        elif number == 3:
            first = x.copy()
            x += a
    return torch.from_numpy(first.view(np.int32)), torch.from_numpy(x.view(np.int32))


def bits(key: Key, start: int, count: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Two independent int32 words for each of the pair counters start .. start + count − 1."""
    _check_range(start, start + count)
    a, b = words(key)
    if torch.device(device).type == "cpu":
        return _hash_pairs_numpy(np.arange(start, start + count, dtype=np.uint32), *_unsigned([a, b]))
    counter = torch.arange(_signed(start), _signed(start) + count, device=device).to(torch.int32)
    return hash_pairs(counter, a, b)


def _check_range(start: int, end: int) -> None:
    require(start >= 0 and end <= 1 << 32, "pair counters", "a range within 32 bits", (start, end))


def _unsigned(numbers: Sequence[int]) -> NDArray[np.uint32]:
    return np.array(numbers, dtype=np.int64).astype(np.uint32)


def box_muller(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Two float32 standard normals from each pair of words.

    The radius takes the absolute value of a signed word as its uniform number: floats are densest where the logarithm
    is steepest, which carries the tails to 6.6 standard deviations.
    """
    radius = first.to(torch.float32).abs_().add_(0.5).mul_(2.0**-31).log_().mul_(-2.0).sqrt_()
    angle = second.to(torch.float32).mul_(math.pi * 2.0**-31)
    return angle.cos().mul_(radius), angle.sin_().mul_(radius)


def normal(
    key: Key, count: int, *, start: int = 0, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> Tensor:
    """Standard normals for the global indices start .. start + count − 1 of one parameter.

    Examples:
        >>> whole = normal(Key(seed=0, step=1), 10_000)
        >>> bool((normal(Key(seed=0, step=1), 100, start=5_000) == whole[5_000:5_100]).all())
        True
    """
    block = start // (2 * HALF)
    blocks = -(-(start + count) // (2 * HALF)) - block
    if count >= LARGE and torch.device(device).type == "cpu":
        _check_range(block * HALF, (block + blocks) * HALF)
        found = native.draw(words(key), start, count, HALF, ROUNDS)
        if found is not None:
            return found.to(dtype)
    pairs = _interleave(*box_muller(*bits(key, block * HALF, blocks * HALF, device)))
    offset = start - block * 2 * HALF
    return pairs[offset : offset + count].to(dtype)


def normals(
    keys: Sequence[Key],
    counts: Sequence[int],
    starts: Sequence[int],
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """`normal` for many small pieces at once, one after the other in one vector.

    Args:
        keys: Where each piece belongs.
        counts: Normals of each piece.
        starts: First index of each piece.
        device: Where the normals are to be.
        dtype: Their type.
    """
    require(len(keys) > 0, "keys", "at least one", "none")
    offsets = [start % (2 * HALF) for start in starts]
    pairs = np.array([-(-(o + n) // (2 * HALF)) for o, n in zip(offsets, counts, strict=True)], dtype=np.int64) * HALF
    begin_pair = np.array(starts, dtype=np.int64) // (2 * HALF) * HALF
    _check_range(int(begin_pair.min()), int((begin_pair + pairs).max()))
    first_pair = begin_pair - (np.cumsum(pairs) - pairs)
    columns = [_unsigned(column) for column in zip(*(words(key) for key in keys), strict=True)]
    if torch.device(device).type == "cpu":
        counter = (np.arange(pairs.sum()) + np.repeat(first_pair, pairs)).astype(np.uint32)
        first, second = _hash_pairs_numpy(counter, *(np.repeat(column, pairs) for column in columns))
    else:
        small = np.stack([first_pair.astype(np.uint32), *columns]).view(np.int32)  # all that has to travel
        repeats = torch.from_numpy(pairs).to(device)
        shift, a, b = torch.from_numpy(small).to(device).repeat_interleave(repeats, dim=1, output_size=int(pairs.sum()))
        first, second = hash_pairs(torch.arange(int(pairs.sum()), dtype=torch.int32, device=device) + shift, a, b)
    flat = _interleave(*box_muller(first, second)).to(dtype)
    begins = ((np.cumsum(pairs) - pairs) * 2 + np.array(offsets, dtype=np.int64)).tolist()
    return torch.cat([flat[begin : begin + n] for begin, n in zip(begins, counts, strict=True)])


def uniform(key: Key, count: int, *, device: torch.device | str = "cpu") -> Tensor:
    """Float64 numbers in the open interval (0, 1) for the indices 0 .. count − 1 of one parameter."""
    word, _ = bits(key, 0, count, device)
    return ((word.to(torch.int64) & _MASK).double() + 0.5) * 2.0**-32


def standard_gamma(key: Key, shape: Tensor) -> Tensor:
    """A draw of Gamma(shape, 1) for each entry of a float64 tensor; `key.parameter` is the first of those it uses.

    With d = a − 1/3, c = 1/√(9d), x ~ N(0, 1) and u uniform, d v with v = (1 + c x)³ is a draw of Gamma(a ≥ 1) where
    log u < x²/2 + d − d v + d log v, which 95 in 100 attempts fulfil. Below 1, Gamma(a) = Gamma(a + 1) u^{1/a}.

    Examples:
        >>> shape = torch.full((50_000,), 0.5, dtype=torch.float64)
        >>> round(standard_gamma(Key(seed=0), shape).mean().item(), 2)
        0.5

    References:
        Marsaglia and Tsang, "A simple method for generating gamma variables", 2000.
    """
    a, place = shape.flatten(), key.parameter
    boosted = a < 1
    power = uniform(key._replace(parameter=place), len(a), device=a.device).log() / a
    d = a + boosted.double() - 1 / 3
    found, left = torch.zeros_like(a), torch.ones_like(boosted)
    while left.any():
        x = normal(key._replace(parameter=place + 1), len(a), device=a.device, dtype=a.dtype)
        log_u = uniform(key._replace(parameter=place + 2), len(a), device=a.device).log()
        v = (1 + x / (9 * d).sqrt()) ** 3
        accepted = (v > 0) & (log_u < 0.5 * x**2 + d - d * v + d * v.clamp_min(1e-300).log())
        found, left, place = torch.where(left & accepted, d * v, found), left & ~accepted, place + 2
    return torch.where(boosted, found * power.exp(), found).view_as(shape)


def _interleave(cosines: Tensor, sines: Tensor) -> Tensor:
    """Blocks of HALF cosines and HALF sines in turn."""
    return torch.stack((cosines.view(-1, HALF), sines.view(-1, HALF)), dim=1).view(-1)
