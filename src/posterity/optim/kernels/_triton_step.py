# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, import-untyped"
"""A step of IVON in Triton: one launch over a table of addresses; the noise is drawn again, not stored.

A program works on one noise block of ``2 * HALF`` weights: its two halves share their Box-Muller pairs, and both are
contiguous in memory. The equations are those of `posterity.optim.ivon`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from posterity.optim.kernels._triton_sample import (
    get_delta,
    key_of,
    width_of,
)
from posterity.optim.kernels._triton_table import (
    BATCH,
    BIAS,
    BUFFER,
    CLIP,
    ESS,
    FORGETTING,
    GROUP,
    HALF,
    HESSIAN,
    INNER,
    LEVEL,
    LINEAR,
    LOG_BETA1,
    LR,
    MARKED,
    MOMENTUM,
    NUMBERED,
    OUTER,
    PRIOR_MEAN,
    QUADRATIC,
    RHO1,
    RHO2,
    SCATTER,
    SIZE,
    SKIPPED,
    SPREAD,
    STEP,
    WIDTH,
    P,
    find_block,
    get,
    get_number,
    noise_of,
    normal_at,
    places_of,
    put,
    transposed,
    words,
)


@triton.jit
def check(table, gradients, blocks, flags, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """Raise the flag if a gradient is NaN or infinite; last blocks first: `step` then finds the first ones cached."""
    t, _, begin, size = find_block(blocks, table, tl.num_programs(0) - 1 - tl.program_id(0))
    offset = begin + tl.arange(0, 2 * HALF)
    if tl.load(gradients + t) != 0:
        if begin + 2 * HALF <= size:
            gradient = get(gradients + t, offset, None, DTYPE, ALIGNED)
        else:
            gradient = get(gradients + t, offset, offset < size, DTYPE, ALIGNED)
        if tl.max((tl.abs(gradient) < float("inf")).to(tl.int32) ^ 1, axis=0) != 0:
            tl.store(flags, 1)


@triton.jit
def _surprise(product, gradient, hessian, delta, quadratic, number, SQUARES: tl.constexpr):
    """(ĥ − h)/(h + δ)."""
    precision = hessian + delta
    if SQUARES:
        surprise = (gradient * gradient * get_number(number, BATCH) - hessian) / precision
    else:
        surprise = product * get_number(number, ESS) - hessian / precision
    return surprise + quadratic / precision / get_number(number, ESS)


@triton.jit
def _equations(
    mean,
    gradient,
    momentum,
    hessian,
    noise,
    terms,
    number,
    measured,
    SQUARES: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """`IVON.update` of one half of a block."""
    delta, prior_mean, linear, quadratic = terms
    ess = get_number(number, ESS)
    theta = (mean + noise * width_of(hessian, delta, ess)).to(DTYPE).to(tl.float32)
    momentum += get_number(number, RHO1) * (gradient - momentum)
    surprise = _surprise((theta - mean) * gradient, gradient, hessian, delta, quadratic, number, SQUARES)
    x = surprise * tl.load(measured + 1)
    hessian += (hessian + delta) * (x + 0.5 * x * x)
    force = momentum * tl.load(measured) + (mean - prior_mean) * delta + (quadratic * mean - linear) / ess
    clip = get_number(number, CLIP)
    direction = tl.minimum(tl.maximum(force / (hessian + delta), -clip), clip)
    return mean - get_number(number, LR) * direction, momentum, hessian


@triton.jit
def _get_terms(row, number, offset, mask, PRIOR: tl.constexpr, TERM: tl.constexpr, ALIGNED: tl.constexpr):
    """δ, the mean of the prior, and the extra term; zeros where there is none."""
    delta = get_delta(row, number, offset, mask, PRIOR, ALIGNED)
    prior_mean, linear, quadratic = 0.0, 0.0, 0.0
    if PRIOR:
        prior_mean = get(row + PRIOR_MEAN, offset, mask, tl.float32, ALIGNED)
    if TERM:
        linear = get(row + LINEAR, offset, mask, tl.float32, ALIGNED)
        quadratic = get(row + QUADRATIC, offset, mask, tl.float32, ALIGNED)
    return delta, prior_mean, linear, quadratic


@triton.jit
def _step(
    row,
    gradient,
    number,
    measured,
    active,
    noise,
    ahead,
    offsets,
    masks,
    AHEAD: tl.constexpr,
    MEAN: tl.constexpr,
    PRIOR: tl.constexpr,
    TERM: tl.constexpr,
    SQUARES: tl.constexpr,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Both halves of a block; all is read before anything is written."""
    mean1 = get(row + MEAN, offsets[0], masks[0], DTYPE, ALIGNED)
    mean2 = get(row + MEAN, offsets[1], masks[1], DTYPE, ALIGNED)
    momentum1 = get(row + MOMENTUM, offsets[0], masks[0], tl.float32, ALIGNED)
    momentum2 = get(row + MOMENTUM, offsets[1], masks[1], tl.float32, ALIGNED)
    hessian1 = get(row + HESSIAN, offsets[0], masks[0], tl.float32, ALIGNED)
    hessian2 = get(row + HESSIAN, offsets[1], masks[1], tl.float32, ALIGNED)
    terms1 = _get_terms(row, number, offsets[0], masks[0], PRIOR, TERM, ALIGNED)
    terms2 = _get_terms(row, number, offsets[1], masks[1], PRIOR, TERM, ALIGNED)
    if active:
        gradient1 = get(gradient, offsets[0], masks[0], DTYPE, ALIGNED)
        gradient2 = get(gradient, offsets[1], masks[1], DTYPE, ALIGNED)
        mean1, momentum1, hessian1 = _equations(
            mean1, gradient1, momentum1, hessian1, noise[0], terms1, number, measured, SQUARES, DTYPE
        )
        mean2, momentum2, hessian2 = _equations(
            mean2, gradient2, momentum2, hessian2, noise[1], terms2, number, measured, SQUARES, DTYPE
        )
        put(row + MOMENTUM, momentum1, offsets[0], masks[0], tl.float32, ALIGNED)
        put(row + MOMENTUM, momentum2, offsets[1], masks[1], tl.float32, ALIGNED)
        put(row + HESSIAN, hessian1, offsets[0], masks[0], tl.float32, ALIGNED)
        put(row + HESSIAN, hessian2, offsets[1], masks[1], tl.float32, ALIGNED)
    if AHEAD:
        put(row + BUFFER, mean1, offsets[0], masks[0], DTYPE, ALIGNED)
        put(row + BUFFER, mean2, offsets[1], masks[1], DTYPE, ALIGNED)
        ess = get_number(number, ESS)
        mean1 = mean1.to(DTYPE).to(tl.float32) + ahead[0] * width_of(hessian1, terms1[0], ess)
        mean2 = mean2.to(DTYPE).to(tl.float32) + ahead[1] * width_of(hessian2, terms2[0], ess)
    put(row + P, mean1, offsets[0], masks[0], DTYPE, ALIGNED)
    put(row + P, mean2, offsets[1], masks[1], DTYPE, ALIGNED)


@triton.jit
def step(
    table,
    gradients,
    numbers,
    measured,
    keys,
    flags,
    blocks,
    AHEAD: tl.constexpr,
    HELD: tl.constexpr,
    PRIOR: tl.constexpr,
    TERM: tl.constexpr,
    SQUARES: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Update momentum, Hessian and mean; p gets the mean, or the sample AHEAD while the buffer gets the mean.

    With HELD the mean is in the buffer, because p still has the sample; it is put back even if the step is skipped.
    """
    t, row, begin, size = find_block(blocks, table, tl.program_id(0))
    if tl.program_id(0) == 0:
        tl.store(flags, 0)  # `measure` has copied it to the second place
    number = numbers + tl.load(row + GROUP) * NUMBERED
    active = (tl.load(gradients + t) != 0) & (tl.load(flags + 1) == 0)
    lane = tl.arange(0, HALF)
    a, b = key_of(keys, t, 0)
    noise = noise_of(row, begin, lane, a, b, TRANSPOSED)
    ahead = noise
    if AHEAD:
        c, d = key_of(keys, t, 1)
        ahead = noise_of(row, begin, lane, c, d, TRANSPOSED)
    MEAN: tl.constexpr = BUFFER if HELD else P
    offsets = begin + lane, begin + HALF + lane
    if begin + 2 * HALF <= size:
        masks = None, None
        _step(
            row, gradients + t, number, measured + 2 * t, active, noise, ahead, offsets, masks,
            AHEAD, MEAN, PRIOR, TERM, SQUARES, DTYPE, ALIGNED,
        )  # fmt: skip
    else:
        tail = offsets[0] < size, offsets[1] < size
        _step(
            row, gradients + t, number, measured + 2 * t, active, noise, ahead, offsets, tail,
            AHEAD, MEAN, PRIOR, TERM, SQUARES, DTYPE, ALIGNED,
        )  # fmt: skip


# ── once for each tensor ─────────────────────────────────────────────────────────────────────────────────────────


@triton.jit
def measure(
    table,
    gradients,
    numbers,
    marks,
    measured,
    keys,
    flags,
    members,
    groups,
    HELD: tl.constexpr,
    PRIOR: tl.constexpr,
    TERM: tl.constexpr,
    SQUARES: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    DTYPE: tl.constexpr,
    SOME: tl.constexpr,
    LANES: tl.constexpr,
):
    """What `step` needs to know about each tensor, and `IVON.observe`: step count, debiasing, 1 − β₂, noise keys."""
    t = tl.load(members + tl.program_id(0))
    row = table + t.to(tl.int64) * WIDTH
    number = numbers + tl.load(row + GROUP) * NUMBERED
    a, b = words(row, marks, 0)
    c, d = words(row, marks, 1)
    tl.store(keys + 4 * t, a.to(tl.int32, bitcast=True))
    tl.store(keys + 4 * t + 1, b.to(tl.int32, bitcast=True))
    tl.store(keys + 4 * t + 2, c.to(tl.int32, bitcast=True))
    tl.store(keys + 4 * t + 3, d.to(tl.int32, bitcast=True))
    flag = tl.load(flags)
    if t == 0:
        tl.store(flags + 1, flag)
        for group in range(0, groups):
            skipped = tl.load(marks + group * MARKED + SKIPPED).to(tl.pointer_type(tl.int64))
            tl.store(skipped, tl.load(skipped) + flag)
    if (tl.load(gradients + t) != 0) & (flag == 0):
        counter = places_of(row + STEP, 0, tl.float32, False)
        steps = tl.load(counter) + 1
        tl.store(counter, steps)
        if (steps <= 10) | (steps % 10 == 0):
            MEAN: tl.constexpr = BUFFER if HELD else P
            _observe(
                row, gradients + t, number, a, b, steps, MEAN, PRIOR, TERM, SQUARES, TRANSPOSED, DTYPE, SOME, LANES
            )
        rate = tl.load(number + RHO2)
        spread = tl.load(places_of(row + SPREAD, 0, tl.float32, False)).to(tl.float64)
        if spread > 0:
            rate = tl.minimum(rate, tl.load(number + BIAS) / spread)
        forgetting = places_of(row + FORGETTING, 0, tl.float32, False)
        tl.store(forgetting, tl.load(forgetting) - tl.log(tl.maximum(1 - rate, 1e-9)).to(tl.float32))
        debias = 1 / (1 - tl.exp(tl.load(number + LOG_BETA1) * steps.to(tl.float64)))
        tl.store(measured + 2 * t, debias.to(tl.float32))
        tl.store(measured + 2 * t + 1, rate.to(tl.float32))


@triton.jit
def _observe(
    row,
    gradient,
    number,
    a,
    b,
    steps,
    MEAN: tl.constexpr,
    PRIOR: tl.constexpr,
    TERM: tl.constexpr,
    SQUARES: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    DTYPE: tl.constexpr,
    SOME: tl.constexpr,
    LANES: tl.constexpr,
):
    """Averages of ĥ + δ, (ĥ − h)²/(h + δ) and h + δ over some of the weights."""
    size = tl.load(row + SIZE)
    stride = 1 + size // SOME
    level, scatter, total = (
        tl.zeros((LANES,), tl.float32),
        tl.zeros((LANES,), tl.float32),
        tl.zeros((LANES,), tl.float32),
    )
    for begin in range(0, (size + stride - 1) // stride, LANES):
        index = (begin + tl.arange(0, LANES)) * stride
        mask = index < size
        offset = index
        if TRANSPOSED:
            offset = transposed(index, tl.load(row + OUTER), tl.load(row + INNER))
        mean = get(row + MEAN, offset, mask, DTYPE, False)
        g = get(gradient, offset, mask, DTYPE, False)
        hessian = get(row + HESSIAN, offset, mask, tl.float32, False)
        delta, _, _, quadratic = _get_terms(row, number, offset, mask, PRIOR, TERM, False)
        width = width_of(hessian, delta, get_number(number, ESS))
        theta = (mean + normal_at(index, a, b) * width).to(DTYPE).to(tl.float32)
        surprise = _surprise((theta - mean) * g, g, hessian, delta, quadratic, number, SQUARES)
        precision = hessian + delta
        level += tl.where(mask, precision * (1 + surprise), 0.0)
        scatter += tl.where(mask, precision * surprise * surprise, 0.0)
        total += tl.where(mask, precision, 0.0)
    count = ((size + stride - 1) // stride).to(tl.float32)
    weight = tl.maximum(1 / tl.where(steps <= 10, steps, 10 + tl.floor(steps / 10)), 0.02)
    places = places_of(row + LEVEL, 0, tl.float32, False)
    new_level = tl.load(places) + weight * (tl.sum(level, axis=0) / count - tl.load(places))
    tl.store(places, new_level)
    places = places_of(row + SCATTER, 0, tl.float32, False)
    new_scatter = tl.load(places) + weight * (tl.sum(scatter, axis=0) / count - tl.load(places))
    tl.store(places, new_scatter)
    spread = new_scatter / tl.maximum(new_level, tl.sum(total, axis=0) / count)
    tl.store(places_of(row + SPREAD, 0, tl.float32, False), spread)
