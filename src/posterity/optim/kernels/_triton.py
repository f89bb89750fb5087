# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, import-untyped"
"""IVON in Triton: one launch over a table of addresses for a sample, one for a step; noise is drawn again, not stored.

A program works on noise blocks of ``2 * HALF`` weights: the two halves share their Box-Muller pairs, and both are
contiguous in memory. The equations are those of `posterity.optim.ivon`, the noise is that of `posterity.noise`.
Capitals are constants at compile time, `row` is a tensor's row of the table, and a `cell` of it holds an address.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

from posterity.noise import HALF as _HALF
from posterity.noise import ROUNDS
from posterity.optim.kernels._addresses import COLUMNS, MARKS, NUMBERS

HALF = tl.constexpr(_HALF)
S1, S2, S3, S4, S5, S6 = (tl.constexpr(shift) for shift, _ in ROUNDS)
M1, M2, M3, M4, M5, M6 = (tl.constexpr(multiplier) for _, multiplier in ROUNDS)
UNIT, TURN = tl.constexpr(2.0**-31), tl.constexpr(math.pi * 2.0**-31)

# In the order of COLUMNS, NUMBERS and MARKS:
P, BUFFER, MOMENTUM, HESSIAN, PRIOR_MEAN, PRIOR_PRECISION, LINEAR, QUADRATIC = map(tl.constexpr, range(8))
STEP, FORGETTING, LEVEL, SCATTER, SPREAD, SIZE, GROUP, INDEX, INNER, OUTER = map(tl.constexpr, range(8, 18))
ESS, DELTA, RHO1, RHO2, BIAS, LOG_BETA1, LR, CLIP, BATCH = map(tl.constexpr, range(9))
SEED, DRAWS, SKIPPED = map(tl.constexpr, range(3))
WIDTH, NUMBERED, MARKED = (tl.constexpr(len(names)) for names in (COLUMNS, NUMBERS, MARKS))


# ── noise ────────────────────────────────────────────────────────────────────────────────────────────────────────


@triton.jit
def _round(x, SHIFT: tl.constexpr, MULTIPLIER: tl.constexpr):
    return (x ^ (x >> SHIFT)) * MULTIPLIER


@triton.jit
def hash_pairs(counter, a, b):
    """`posterity.noise.hash_pairs` on unsigned words."""
    first = _round(_round(_round(_round(counter + a, S1, M1) + b, S2, M2), S3, M3), S4, M4)
    return first, _round(_round(first + a, S5, M5), S6, M6)


@triton.jit
def _normals(counter, a, b):
    """Both normals of each pair counter."""
    first, second = hash_pairs(counter, a, b)
    uniform = (tl.abs(first.to(tl.int32, bitcast=True).to(tl.float32)) + 0.5) * UNIT
    radius = tl.sqrt(-2.0 * tl.log(uniform))
    cosine, sine = _cos_sin(second.to(tl.int32, bitcast=True).to(tl.float32) * TURN)
    return cosine * radius, sine * radius


@triton.jit
def _cos_sin(angle):
    """Both, within two units in the last place for |angle| <= π, in half the instructions of the general functions."""
    quarter = tl.floor(angle * 0.6366197723675814 + 0.5)
    x = (angle - quarter * 1.57079637050628662109375) + quarter * 4.371139000186241e-8  # π/2 in two parts
    z = x * x
    sine = x + x * z * (-1.6666654611e-1 + z * (8.3321608736e-3 - z * 1.9515295891e-4))
    cosine = 1.0 - 0.5 * z + z * z * (4.166664568298827e-2 + z * (-1.388731625493765e-3 + z * 2.443315711809948e-5))
    turns = quarter.to(tl.int32)
    odd = (turns & 1) != 0
    c, s = tl.where(odd, sine, cosine), tl.where(odd, cosine, sine)
    return tl.where(((turns + 1) & 2) != 0, -c, c), tl.where((turns & 2) != 0, -s, s)


@triton.jit
def _normal_at(index, a, b):
    """The normal of each index of a parameter."""
    within = index % (2 * HALF)
    counter = index // (2 * HALF) * HALF + within % HALF
    cosine, sine = _normals(counter.to(tl.uint32), a, b)
    return tl.where(within < HALF, cosine, sine)


@triton.jit
def _transposed(index, inner, outer):
    """Where an index goes when each matrix of (outer, inner) in a batch of them is transposed."""
    matrix = inner * outer
    return index - index % matrix + index % inner * outer + index % matrix // inner


@triton.jit
def _noise(row, begin, lane, a, b, TRANSPOSED: tl.constexpr):
    """The normals of both halves of a block of memory."""
    if TRANSPOSED:
        inner, outer = tl.load(row + INNER), tl.load(row + OUTER)
        left = _normal_at(_transposed(begin + lane, inner, outer), a, b)
        right = _normal_at(_transposed(begin + HALF + lane, inner, outer), a, b)
    else:
        left, right = _normals((begin // 2 + lane).to(tl.uint32), a, b)
    return left, right


@triton.jit
def _mix(x):
    x = _round(_round(x, S1, M1), S2, M2)
    return x ^ (x >> 16)


@triton.jit
def _absorb(a, b, number):
    for shift in tl.static_range(0, 64, 32):
        part = (number >> shift).to(tl.uint32)
        a = _mix((a ^ part) + 0x6A09E667)
        b = _mix((b + part) ^ a)
    return a, b


@triton.jit
def words(row, marks, ahead):
    """`posterity.noise.words` of the sample drawn last, or of the one `ahead` of it."""
    mark = marks + tl.load(row + GROUP) * MARKED
    seed, draws = tl.load(mark + SEED), tl.load(tl.load(mark + DRAWS).to(tl.pointer_type(tl.int64)))
    zero = seed * 0
    a, b = _absorb(zero.to(tl.uint32) + 0x9E3779B9, zero.to(tl.uint32) + 0x85EBCA6B, seed)
    a, b = _absorb(a, b, draws + ahead)
    a, b = _absorb(a, b, zero)
    return _absorb(a, b, tl.load(row + INDEX))


# ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────


@triton.jit
def _places(cell, offset, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    places = tl.load(cell).to(tl.pointer_type(DTYPE)) + offset
    if ALIGNED:
        places = tl.multiple_of(places, 16)  # lets the compiler move four numbers at a time
    return places


@triton.jit
def _get(cell, offset, mask, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    places = _places(cell, offset, DTYPE, ALIGNED)
    if mask is None:  # noqa: SIM108 (Triton compiles both sides of an expression)
        values = tl.load(places)
    else:
        values = tl.load(places, mask=mask, other=1.0)
    return values.to(tl.float32)


@triton.jit
def _put(cell, values, offset, mask, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    tl.store(_places(cell, offset, DTYPE, ALIGNED), values.to(DTYPE), mask=mask)


@triton.jit
def _get_number(number, NAME: tl.constexpr):
    return tl.load(number + NAME).to(tl.float32)


@triton.jit
def _block(blocks, table, program):
    """The tensor that a program works on, its row, where in it to begin, and its size."""
    t, block = tl.load(blocks + 2 * program), tl.load(blocks + 2 * program + 1)
    row = table + t.to(tl.int64) * WIDTH
    return t, row, block.to(tl.int64) * (2 * HALF), tl.load(row + SIZE)


# ── a sample ─────────────────────────────────────────────────────────────────────────────────────────────────────


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
def _key(keys, t, AHEAD: tl.constexpr):
    key = keys + 4 * t + 2 * AHEAD
    return tl.load(key).to(tl.uint32, bitcast=True), tl.load(key + 1).to(tl.uint32, bitcast=True)


@triton.jit
def _get_delta(row, number, offset, mask, PRIOR: tl.constexpr, ALIGNED: tl.constexpr):
    if PRIOR:
        delta = _get(row + PRIOR_PRECISION, offset, mask, tl.float32, ALIGNED) / _get_number(number, ESS)
    else:
        delta = _get_number(number, DELTA)
    return delta


@triton.jit
def _width(hessian, delta, ess):
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
    t, row, begin, size = _block(blocks, table, tl.program_id(0))
    number = numbers + tl.load(row + GROUP) * NUMBERED
    a, b = _key(keys, t, 0)
    lane = tl.arange(0, HALF)
    noise = _noise(row, begin, lane, a, b, TRANSPOSED)
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
    ess = _get_number(number, ESS)
    mean1 = _get(row + P, offsets[0], masks[0], DTYPE, ALIGNED)
    mean2 = _get(row + P, offsets[1], masks[1], DTYPE, ALIGNED)
    hessian1 = _get(row + HESSIAN, offsets[0], masks[0], tl.float32, ALIGNED)
    hessian2 = _get(row + HESSIAN, offsets[1], masks[1], tl.float32, ALIGNED)
    delta1 = _get_delta(row, number, offsets[0], masks[0], PRIOR, ALIGNED)
    delta2 = _get_delta(row, number, offsets[1], masks[1], PRIOR, ALIGNED)
    theta1 = mean1 + noise[0] * _width(hessian1, delta1, ess)
    theta2 = mean2 + noise[1] * _width(hessian2, delta2, ess)
    if KEEP:
        _put(row + BUFFER, theta1, offsets[0], masks[0], DTYPE, ALIGNED)
        _put(row + BUFFER, theta2, offsets[1], masks[1], DTYPE, ALIGNED)
    else:
        _put(row + BUFFER, mean1, offsets[0], masks[0], DTYPE, ALIGNED)
        _put(row + BUFFER, mean2, offsets[1], masks[1], DTYPE, ALIGNED)
        _put(row + P, theta1, offsets[0], masks[0], DTYPE, ALIGNED)
        _put(row + P, theta2, offsets[1], masks[1], DTYPE, ALIGNED)


@triton.jit
def restore(table, blocks, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """p ← buffer, bit for bit."""
    _, row, begin, size = _block(blocks, table, tl.program_id(0))
    offset = begin + tl.arange(0, 2 * HALF)
    here, there = _places(row + P, offset, DTYPE, ALIGNED), _places(row + BUFFER, offset, DTYPE, ALIGNED)
    if begin + 2 * HALF <= size:
        tl.store(here, tl.load(there))
    else:
        tl.store(here, tl.load(there, mask=offset < size), mask=offset < size)


# ── a step ───────────────────────────────────────────────────────────────────────────────────────────────────────


@triton.jit
def check(table, gradients, blocks, flags, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """Raise the flag if a gradient is NaN or infinite; last blocks first: `step` then finds the first ones cached."""
    t, _, begin, size = _block(blocks, table, tl.num_programs(0) - 1 - tl.program_id(0))
    offset = begin + tl.arange(0, 2 * HALF)
    if tl.load(gradients + t) != 0:
        if begin + 2 * HALF <= size:
            gradient = _get(gradients + t, offset, None, DTYPE, ALIGNED)
        else:
            gradient = _get(gradients + t, offset, offset < size, DTYPE, ALIGNED)
        if tl.max((tl.abs(gradient) < float("inf")).to(tl.int32) ^ 1, axis=0) != 0:
            tl.store(flags, 1)


@triton.jit
def _surprise(product, gradient, hessian, delta, quadratic, number, SQUARES: tl.constexpr):
    """(ĥ − h)/(h + δ)."""
    precision = hessian + delta
    if SQUARES:
        surprise = (gradient * gradient * _get_number(number, BATCH) - hessian) / precision
    else:
        surprise = product * _get_number(number, ESS) - hessian / precision
    return surprise + quadratic / precision / _get_number(number, ESS)


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
    ess = _get_number(number, ESS)
    theta = (mean + noise * _width(hessian, delta, ess)).to(DTYPE).to(tl.float32)
    momentum += _get_number(number, RHO1) * (gradient - momentum)
    surprise = _surprise((theta - mean) * gradient, gradient, hessian, delta, quadratic, number, SQUARES)
    x = surprise * tl.load(measured + 1)
    hessian += (hessian + delta) * (x + 0.5 * x * x)
    force = momentum * tl.load(measured) + (mean - prior_mean) * delta + (quadratic * mean - linear) / ess
    clip = _get_number(number, CLIP)
    direction = tl.minimum(tl.maximum(force / (hessian + delta), -clip), clip)
    return mean - _get_number(number, LR) * direction, momentum, hessian


@triton.jit
def _get_terms(row, number, offset, mask, PRIOR: tl.constexpr, TERM: tl.constexpr, ALIGNED: tl.constexpr):
    """δ, the mean of the prior, and the extra term; zeros where there is none."""
    delta = _get_delta(row, number, offset, mask, PRIOR, ALIGNED)
    prior_mean, linear, quadratic = 0.0, 0.0, 0.0
    if PRIOR:
        prior_mean = _get(row + PRIOR_MEAN, offset, mask, tl.float32, ALIGNED)
    if TERM:
        linear = _get(row + LINEAR, offset, mask, tl.float32, ALIGNED)
        quadratic = _get(row + QUADRATIC, offset, mask, tl.float32, ALIGNED)
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
    mean1 = _get(row + MEAN, offsets[0], masks[0], DTYPE, ALIGNED)
    mean2 = _get(row + MEAN, offsets[1], masks[1], DTYPE, ALIGNED)
    momentum1 = _get(row + MOMENTUM, offsets[0], masks[0], tl.float32, ALIGNED)
    momentum2 = _get(row + MOMENTUM, offsets[1], masks[1], tl.float32, ALIGNED)
    hessian1 = _get(row + HESSIAN, offsets[0], masks[0], tl.float32, ALIGNED)
    hessian2 = _get(row + HESSIAN, offsets[1], masks[1], tl.float32, ALIGNED)
    terms1 = _get_terms(row, number, offsets[0], masks[0], PRIOR, TERM, ALIGNED)
    terms2 = _get_terms(row, number, offsets[1], masks[1], PRIOR, TERM, ALIGNED)
    if active:
        gradient1 = _get(gradient, offsets[0], masks[0], DTYPE, ALIGNED)
        gradient2 = _get(gradient, offsets[1], masks[1], DTYPE, ALIGNED)
        mean1, momentum1, hessian1 = _equations(
            mean1, gradient1, momentum1, hessian1, noise[0], terms1, number, measured, SQUARES, DTYPE
        )
        mean2, momentum2, hessian2 = _equations(
            mean2, gradient2, momentum2, hessian2, noise[1], terms2, number, measured, SQUARES, DTYPE
        )
        _put(row + MOMENTUM, momentum1, offsets[0], masks[0], tl.float32, ALIGNED)
        _put(row + MOMENTUM, momentum2, offsets[1], masks[1], tl.float32, ALIGNED)
        _put(row + HESSIAN, hessian1, offsets[0], masks[0], tl.float32, ALIGNED)
        _put(row + HESSIAN, hessian2, offsets[1], masks[1], tl.float32, ALIGNED)
    if AHEAD:
        _put(row + BUFFER, mean1, offsets[0], masks[0], DTYPE, ALIGNED)
        _put(row + BUFFER, mean2, offsets[1], masks[1], DTYPE, ALIGNED)
        ess = _get_number(number, ESS)
        mean1 = mean1.to(DTYPE).to(tl.float32) + ahead[0] * _width(hessian1, terms1[0], ess)
        mean2 = mean2.to(DTYPE).to(tl.float32) + ahead[1] * _width(hessian2, terms2[0], ess)
    _put(row + P, mean1, offsets[0], masks[0], DTYPE, ALIGNED)
    _put(row + P, mean2, offsets[1], masks[1], DTYPE, ALIGNED)


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
    t, row, begin, size = _block(blocks, table, tl.program_id(0))
    if tl.program_id(0) == 0:
        tl.store(flags, 0)  # `measure` has copied it to the second place
    number = numbers + tl.load(row + GROUP) * NUMBERED
    active = (tl.load(gradients + t) != 0) & (tl.load(flags + 1) == 0)
    lane = tl.arange(0, HALF)
    a, b = _key(keys, t, 0)
    noise = _noise(row, begin, lane, a, b, TRANSPOSED)
    ahead = noise
    if AHEAD:
        c, d = _key(keys, t, 1)
        ahead = _noise(row, begin, lane, c, d, TRANSPOSED)
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
        counter = _places(row + STEP, 0, tl.float32, False)
        steps = tl.load(counter) + 1
        tl.store(counter, steps)
        if (steps <= 10) | (steps % 10 == 0):
            MEAN: tl.constexpr = BUFFER if HELD else P
            _observe(
                row, gradients + t, number, a, b, steps, MEAN, PRIOR, TERM, SQUARES, TRANSPOSED, DTYPE, SOME, LANES
            )
        rate = tl.load(number + RHO2)
        spread = tl.load(_places(row + SPREAD, 0, tl.float32, False)).to(tl.float64)
        if spread > 0:
            rate = tl.minimum(rate, tl.load(number + BIAS) / spread)
        forgetting = _places(row + FORGETTING, 0, tl.float32, False)
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
            offset = _transposed(index, tl.load(row + OUTER), tl.load(row + INNER))
        mean = _get(row + MEAN, offset, mask, DTYPE, False)
        g = _get(gradient, offset, mask, DTYPE, False)
        hessian = _get(row + HESSIAN, offset, mask, tl.float32, False)
        delta, _, _, quadratic = _get_terms(row, number, offset, mask, PRIOR, TERM, False)
        width = _width(hessian, delta, _get_number(number, ESS))
        theta = (mean + _normal_at(index, a, b) * width).to(DTYPE).to(tl.float32)
        surprise = _surprise((theta - mean) * g, g, hessian, delta, quadratic, number, SQUARES)
        precision = hessian + delta
        level += tl.where(mask, precision * (1 + surprise), 0.0)
        scatter += tl.where(mask, precision * surprise * surprise, 0.0)
        total += tl.where(mask, precision, 0.0)
    count = ((size + stride - 1) // stride).to(tl.float32)
    weight = tl.maximum(1 / tl.where(steps <= 10, steps, 10 + tl.floor(steps / 10)), 0.02)
    places = _places(row + LEVEL, 0, tl.float32, False)
    new_level = tl.load(places) + weight * (tl.sum(level, axis=0) / count - tl.load(places))
    tl.store(places, new_level)
    places = _places(row + SCATTER, 0, tl.float32, False)
    new_scatter = tl.load(places) + weight * (tl.sum(scatter, axis=0) / count - tl.load(places))
    tl.store(places, new_scatter)
    spread = new_scatter / tl.maximum(new_level, tl.sum(total, axis=0) / count)
    tl.store(_places(row + SPREAD, 0, tl.float32, False), spread)
