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
    FACTOR,
    FACTS,
    GROUP,
    HALF,
    HESSIAN,
    MARKED,
    NUMBERED,
    PRIOR_PRECISION,
    STILL,
    WIDTH,
    P,
    address_of,
    find_block,
    get,
    noise_of,
    put,
    words,
)


@triton.jit
def draw(table, marks, numbers, keys, facts, count, groups, ADVANCE: tl.constexpr, LANES: tl.constexpr):
    """Write the words of every tensor's noise in the last draw, or in the next with ADVANCE 1, which then counts."""
    for begin in range(0, count, LANES):
        t = begin + tl.arange(0, LANES)
        here = t < count
        row = table + tl.minimum(t, count - 1) * WIDTH
        number = numbers + tl.load(row + GROUP) * NUMBERED
        a, b = words(row, marks, ADVANCE)
        tl.store(keys + 4 * t, a.to(tl.int32, bitcast=True), mask=here)
        tl.store(keys + 4 * t + 1, b.to(tl.int32, bitcast=True), mask=here)
        tl.store(facts + FACTS * t + ESS, tl.load(number + ESS).to(tl.float32), mask=here)
        tl.store(facts + FACTS * t + DELTA, tl.load(number + DELTA).to(tl.float32), mask=here)
    tl.debug_barrier()
    for group in range(0, groups):
        counter = tl.load(marks + group * MARKED + DRAWS).to(tl.pointer_type(tl.int64))
        tl.store(counter, tl.load(counter) + ADVANCE)


@triton.jit
def key_of(keys, t, AHEAD: tl.constexpr):
    key = keys + 4 * t + 2 * AHEAD
    return tl.load(key).to(tl.uint32, bitcast=True), tl.load(key + 1).to(tl.uint32, bitcast=True)


@triton.jit
def get_delta(row, begin, fact, offset, mask, PRIOR: tl.constexpr, ALIGNED: tl.constexpr):
    if PRIOR:
        precision = get(address_of(row + PRIOR_PRECISION, begin, tl.float32, ALIGNED), offset, mask)
        delta = precision / tl.load(fact + ESS)
    else:
        delta = tl.load(fact + DELTA)
    return delta


@triton.jit
def delta_of(delta, mean, hessian, still):
    """δ of each weight: `still` times as large where both the weight and its curvature are 0."""
    return tl.where((mean == 0) & (hessian == 0), delta * still, delta)


@triton.jit
def width_of(hessian, delta, ess):
    return tl.rsqrt((hessian + delta) * ess)


@triton.jit
def add_product(gradient, product, begin, buffer, theta, offset, rest, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """Sum by parts: product += (sample in the buffer − θ) · gradient; nothing where there is no product."""
    there = offset < rest * (tl.load(product) != 0).to(tl.int32)
    gradients = tl.load(address_of(gradient, begin, DTYPE, ALIGNED) + offset, mask=there, other=0.0).to(tl.float32)
    change = get(buffer, offset, there) - theta.to(DTYPE).to(tl.float32)
    sums = address_of(product, begin, tl.float32, ALIGNED)
    put(sums, get(sums, offset, there) + change * gradients, offset, there)


@triton.jit
def sample(
    table,
    blocks,
    gradients,
    products,
    keys,
    facts,
    KEEP: tl.constexpr,
    SUMMED: tl.constexpr,
    SCALED: tl.constexpr,
    PRIOR: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """buffer ← m and p ← m + σε; or, to KEEP the mean in place, buffer ← m + σε. Reads come before writes.

    If SCALED, the curvature is a multiple of the Hessian. If SUMMED, (last sample − this one) · gradient is added to
    the products, with the last sample in the buffer.
    """
    t, row, begin, rest = find_block(blocks, table, tl.program_id(0), ALIGNED)
    left = tl.arange(0, HALF)
    right = left + HALF
    some, others = left < rest, right < rest
    p, buffer = address_of(row + P, begin, DTYPE, ALIGNED), address_of(row + BUFFER, begin, DTYPE, ALIGNED)
    hessian = address_of(row + HESSIAN, begin, tl.float32, ALIGNED)
    mean1, mean2 = get(p, left, some), get(p, right, others)
    hessian1, hessian2 = get(hessian, left, some), get(hessian, right, others)
    fact = facts + t * FACTS
    delta1 = get_delta(row, begin, fact, left, some, PRIOR, ALIGNED)
    delta2 = get_delta(row, begin, fact, right, others, PRIOR, ALIGNED)
    if SCALED:
        factor, still = tl.load(fact + FACTOR), tl.load(fact + STILL)
        delta1, delta2 = delta_of(delta1, mean1, hessian1, still), delta_of(delta2, mean2, hessian2, still)
        hessian1, hessian2 = hessian1 * factor, hessian2 * factor
    a, b = key_of(keys, t, 0)
    noise = noise_of(row, begin, left, a, b, TRANSPOSED)
    ess = tl.load(fact + ESS)
    theta1 = mean1 + noise[0] * width_of(hessian1, delta1, ess)
    theta2 = mean2 + noise[1] * width_of(hessian2, delta2, ess)
    if SUMMED:
        add_product(gradients + t, products + t, begin, buffer, theta1, left, rest, DTYPE, ALIGNED)
        add_product(gradients + t, products + t, begin, buffer, theta2, right, rest, DTYPE, ALIGNED)
        tl.debug_barrier()  # all threads have read the buffer
    if KEEP:
        put(buffer, theta1, left, some)
        put(buffer, theta2, right, others)
    else:
        put(buffer, mean1, left, some)
        put(buffer, mean2, right, others)
        put(p, theta1, left, some)
        put(p, theta2, right, others)


@triton.jit
def restore(table, blocks, KEEP: tl.constexpr, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """p ← buffer, bit for bit; and buffer ← p, to KEEP the sample."""
    _, row, begin, rest = find_block(blocks, table, tl.program_id(0), ALIGNED)
    p, buffer = address_of(row + P, begin, DTYPE, ALIGNED), address_of(row + BUFFER, begin, DTYPE, ALIGNED)
    offset = tl.arange(0, 2 * HALF)
    mean = tl.load(buffer + offset, mask=offset < rest)
    if KEEP:
        sample = tl.load(p + offset, mask=offset < rest)
        tl.debug_barrier()
        tl.store(buffer + offset, sample, mask=offset < rest)
    tl.store(p + offset, mean, mask=offset < rest)
