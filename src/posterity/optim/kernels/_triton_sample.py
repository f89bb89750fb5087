# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, import-untyped"
"""Samples in Triton: p ← m + σε in one launch over a table of addresses, and the mean back again."""

from __future__ import annotations

import triton
import triton.language as tl

from posterity.optim.kernels._triton_table import (
    BUFFER,
    DELTA,
    DRAWS,
    ESS,
    GROUP,
    HALF,
    HESSIAN,
    MARKED,
    NUMBERED,
    PRIOR_PRECISION,
    WIDTH,
    P,
    find_block,
    get,
    get_number,
    noise_of,
    places_of,
    put,
    words,
)


@triton.jit
def draw(table, marks, keys, count, groups, advance, LANES: tl.constexpr):
    """Write the words of every tensor's noise, of the next draw with `advance` 1, which is then counted."""
    for begin in range(0, count, LANES):
        t = begin + tl.arange(0, LANES)
        a, b = words(table + tl.minimum(t, count - 1) * WIDTH, marks, advance)
        tl.store(keys + 4 * t, a.to(tl.int32, bitcast=True), mask=t < count)
        tl.store(keys + 4 * t + 1, b.to(tl.int32, bitcast=True), mask=t < count)
    tl.debug_barrier()
    for group in range(0, groups):
        counter = tl.load(marks + group * MARKED + DRAWS).to(tl.pointer_type(tl.int64))
        tl.store(counter, tl.load(counter) + advance)


@triton.jit
def key_of(keys, t, AHEAD: tl.constexpr):
    key = keys + 4 * t + 2 * AHEAD
    return tl.load(key).to(tl.uint32, bitcast=True), tl.load(key + 1).to(tl.uint32, bitcast=True)


@triton.jit
def get_delta(row, number, offset, mask, PRIOR: tl.constexpr, ALIGNED: tl.constexpr):
    if PRIOR:
        delta = get(row + PRIOR_PRECISION, offset, mask, tl.float32, ALIGNED) / get_number(number, ESS)
    else:
        delta = get_number(number, DELTA)
    return delta


@triton.jit
def width_of(hessian, delta, ess):
    return 1.0 / tl.sqrt((hessian + delta) * ess)


@triton.jit
def sample(
    table,
    numbers,
    keys,
    blocks,
    KEEP: tl.constexpr,
    PRIOR: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """buffer ← m and p ← m + σε; or, to KEEP the mean in place, buffer ← m + σε."""
    t, row, begin, size = find_block(blocks, table, tl.program_id(0))
    number = numbers + tl.load(row + GROUP) * NUMBERED
    a, b = key_of(keys, t, 0)
    lane = tl.arange(0, HALF)
    noise = noise_of(row, begin, lane, a, b, TRANSPOSED)
    offsets = begin + lane, begin + HALF + lane
    if begin + 2 * HALF <= size:
        _sample(row, number, noise, offsets, (None, None), KEEP, PRIOR, DTYPE, ALIGNED)
    else:
        _sample(row, number, noise, offsets, (offsets[0] < size, offsets[1] < size), KEEP, PRIOR, DTYPE, ALIGNED)


@triton.jit
def _sample(
    row,
    number,
    noise,
    offsets,
    masks,
    KEEP: tl.constexpr,
    PRIOR: tl.constexpr,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Both halves of a block; all is read before anything is written, so that nothing waits."""
    ess = get_number(number, ESS)
    mean1 = get(row + P, offsets[0], masks[0], DTYPE, ALIGNED)
    mean2 = get(row + P, offsets[1], masks[1], DTYPE, ALIGNED)
    hessian1 = get(row + HESSIAN, offsets[0], masks[0], tl.float32, ALIGNED)
    hessian2 = get(row + HESSIAN, offsets[1], masks[1], tl.float32, ALIGNED)
    delta1 = get_delta(row, number, offsets[0], masks[0], PRIOR, ALIGNED)
    delta2 = get_delta(row, number, offsets[1], masks[1], PRIOR, ALIGNED)
    theta1 = mean1 + noise[0] * width_of(hessian1, delta1, ess)
    theta2 = mean2 + noise[1] * width_of(hessian2, delta2, ess)
    if KEEP:
        put(row + BUFFER, theta1, offsets[0], masks[0], DTYPE, ALIGNED)
        put(row + BUFFER, theta2, offsets[1], masks[1], DTYPE, ALIGNED)
    else:
        put(row + BUFFER, mean1, offsets[0], masks[0], DTYPE, ALIGNED)
        put(row + BUFFER, mean2, offsets[1], masks[1], DTYPE, ALIGNED)
        put(row + P, theta1, offsets[0], masks[0], DTYPE, ALIGNED)
        put(row + P, theta2, offsets[1], masks[1], DTYPE, ALIGNED)


@triton.jit
def restore(table, blocks, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """p ← buffer, bit for bit."""
    _, row, begin, size = find_block(blocks, table, tl.program_id(0))
    offset = begin + tl.arange(0, 2 * HALF)
    here, there = places_of(row + P, offset, DTYPE, ALIGNED), places_of(row + BUFFER, offset, DTYPE, ALIGNED)
    if begin + 2 * HALF <= size:
        tl.store(here, tl.load(there))
    else:
        tl.store(here, tl.load(there, mask=offset < size), mask=offset < size)
