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
    ACTIVE,
    BATCH,
    BIAS,
    BUFFER,
    CLIP,
    DEBIAS,
    ESS,
    FACTS,
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
    RATE,
    RHO1,
    RHO2,
    SCATTER,
    SIZE,
    SKIPPED,
    SPREAD,
    STEP,
    WIDTH,
    P,
    address_of,
    find_block,
    get,
    noise_of,
    normal_at,
    put,
    transposed,
    words,
)


@triton.jit
def check(table, blocks, gradients, flags, count, DTYPE: tl.constexpr, ALIGNED: tl.constexpr, TOGETHER: tl.constexpr):
    """Raise the flag if the square of a gradient is not finite; last blocks first: `step` finds the others cached."""
    offset = tl.arange(0, 2 * HALF)
    for k in tl.static_range(TOGETHER):
        program = count - 1 - tl.program_id(0) * TOGETHER - k
        t, _, begin, rest = find_block(blocks, table, tl.maximum(program, 0), ALIGNED)
        rest *= (tl.load(gradients + t) != 0).to(tl.int32)
        address = address_of(gradients + t, begin, DTYPE, ALIGNED)
        gradient = tl.load(address + offset, mask=offset < rest, other=0.0).to(tl.float32)
        squares = gradient * gradient * 0.0  # NaN where one is not finite
        spoilt = tl.sum(tl.reshape(squares, (HALF // 2, 4)), axis=1)
        tl.store(flags + tl.zeros_like(spoilt).to(tl.int32), 1, mask=spoilt != 0.0)


@triton.jit
def _surprise(product, gradient, hessian, inverse, quadratic, fact, SQUARES: tl.constexpr, TERM: tl.constexpr):
    """(ĥ − h)/(h + δ)."""
    if SQUARES:
        surprise = (gradient * gradient * tl.load(fact + BATCH) - hessian) * inverse
    else:
        surprise = product * tl.load(fact + ESS) - hessian * inverse
    if TERM:
        surprise += quadratic * inverse / tl.load(fact + ESS)
    return surprise


@triton.jit
def lerp(start, end, weight):
    """As torch.lerp, from the nearer end: a weight of 1 gives `end`, bit for bit."""
    change = end - start
    return tl.where(weight < 0.5, start + weight * change, end - (1 - weight) * change)


@triton.jit
def _equations(
    mean,
    gradient,
    momentum,
    hessian,
    noise,
    product,
    terms,
    fact,
    SAMPLED: tl.constexpr,
    PRIOR: tl.constexpr,
    TERM: tl.constexpr,
    SQUARES: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """`IVON.update` of one half of a block; λ·width² stands for 1/(h + δ). SAMPLED adds to the product given."""
    delta, prior_mean, linear, quadratic = terms
    ess = tl.load(fact + ESS)
    width = width_of(hessian, delta, ess)
    momentum = lerp(momentum, gradient, tl.load(fact + RHO1))
    if SAMPLED:
        product += ((mean + noise * width).to(DTYPE).to(tl.float32) - mean) * gradient
    surprise = _surprise(product, gradient, hessian, width * width * ess, quadratic, fact, SQUARES, TERM)
    x = surprise * tl.load(fact + RATE)
    hessian += (hessian + delta) * (x + 0.5 * x * x)
    width = width_of(hessian, delta, ess)
    pulled = mean
    if PRIOR:
        pulled = mean - prior_mean
    force = momentum * tl.load(fact + DEBIAS) + pulled * delta
    if TERM:
        force += (quadratic * mean - linear) / ess
    clip = tl.load(fact + CLIP)
    direction = tl.minimum(tl.maximum(force * (width * width * ess), -clip), clip)
    return mean - tl.load(fact + LR) * direction, momentum, hessian, width


@triton.jit
def _get_terms(row, begin, fact, offset, mask, PRIOR: tl.constexpr, TERM: tl.constexpr, ALIGNED: tl.constexpr):
    """δ, the mean of the prior, and the extra term; zeros where there is none."""
    delta = get_delta(row, begin, fact, offset, mask, PRIOR, ALIGNED)
    prior_mean, linear, quadratic = 0.0, 0.0, 0.0
    if PRIOR:
        prior_mean = get(address_of(row + PRIOR_MEAN, begin, tl.float32, ALIGNED), offset, mask)
    if TERM:
        linear = get(address_of(row + LINEAR, begin, tl.float32, ALIGNED), offset, mask)
        quadratic = get(address_of(row + QUADRATIC, begin, tl.float32, ALIGNED), offset, mask)
    return delta, prior_mean, linear, quadratic


@triton.jit
def step(
    table,
    blocks,
    gradients,
    products,
    keys,
    facts,
    flags,
    AHEAD: tl.constexpr,
    HELD: tl.constexpr,
    SAMPLED: tl.constexpr,
    SUMMED: tl.constexpr,
    PRIOR: tl.constexpr,
    TERM: tl.constexpr,
    SQUARES: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Update momentum, Hessian and mean; p gets the mean, or the sample AHEAD while the buffer gets the mean.

    With HELD the mean is in the buffer, because p still has the sample; it is put back even if the step is skipped:
    then the rates of all averages are 0, and gradients are not read. All is read before anything is written.
    """
    t, row, begin, rest = find_block(blocks, table, tl.program_id(0), ALIGNED)
    if tl.program_id(0) == 0:
        tl.store(flags, 0)  # `measure` has acted on it
    left = tl.arange(0, HALF)
    right = left + HALF
    some, others = left < rest, right < rest
    p, buffer = address_of(row + P, begin, DTYPE, ALIGNED), address_of(row + BUFFER, begin, DTYPE, ALIGNED)
    momentum = address_of(row + MOMENTUM, begin, tl.float32, ALIGNED)
    hessian = address_of(row + HESSIAN, begin, tl.float32, ALIGNED)
    mean = buffer if HELD else p
    mean1, mean2 = get(mean, left, some), get(mean, right, others)
    momentum1, momentum2 = get(momentum, left, some), get(momentum, right, others)
    hessian1, hessian2 = get(hessian, left, some), get(hessian, right, others)
    fact = facts + t * FACTS
    gradient, there = address_of(gradients + t, begin, DTYPE, ALIGNED), rest * tl.load(fact + ACTIVE).to(tl.int32)
    gradient1 = tl.load(gradient + left, mask=left < there, other=0.0).to(tl.float32)
    gradient2 = tl.load(gradient + right, mask=right < there, other=0.0).to(tl.float32)
    terms1 = _get_terms(row, begin, fact, left, some, PRIOR, TERM, ALIGNED)
    terms2 = _get_terms(row, begin, fact, right, others, PRIOR, TERM, ALIGNED)
    product1, product2 = tl.zeros_like(gradient1), tl.zeros_like(gradient2)
    if SUMMED:
        product = address_of(products + t, begin, tl.float32, ALIGNED)
        product1 = tl.load(product + left, mask=left < there, other=0.0)
        product2 = tl.load(product + right, mask=right < there, other=0.0)
    a, b = key_of(keys, t, 0)
    noise = noise_of(row, begin, left, a, b, TRANSPOSED)
    mean1, momentum1, hessian1, width1 = _equations(
        mean1, gradient1, momentum1, hessian1, noise[0], product1, terms1, fact, SAMPLED, PRIOR, TERM, SQUARES, DTYPE
    )
    mean2, momentum2, hessian2, width2 = _equations(
        mean2, gradient2, momentum2, hessian2, noise[1], product2, terms2, fact, SAMPLED, PRIOR, TERM, SQUARES, DTYPE
    )
    put(momentum, momentum1, left, some)
    put(momentum, momentum2, right, others)
    put(hessian, hessian1, left, some)
    put(hessian, hessian2, right, others)
    if AHEAD:
        put(buffer, mean1, left, some)
        put(buffer, mean2, right, others)
        c, d = key_of(keys, t, 1)
        ahead = noise_of(row, begin, left, c, d, TRANSPOSED)
        mean1 = mean1.to(DTYPE).to(tl.float32) + ahead[0] * width1
        mean2 = mean2.to(DTYPE).to(tl.float32) + ahead[1] * width2
    put(p, mean1, left, some)
    put(p, mean2, right, others)


# ── once for each tensor ─────────────────────────────────────────────────────────────────────────────────────────


@triton.jit
def measure(
    table,
    gradients,
    products,
    numbers,
    marks,
    keys,
    facts,
    flags,
    members,
    groups,
    HELD: tl.constexpr,
    SAMPLED: tl.constexpr,
    SUMMED: tl.constexpr,
    PRIOR: tl.constexpr,
    TERM: tl.constexpr,
    SQUARES: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    DTYPE: tl.constexpr,
    SOME: tl.constexpr,
):
    """What `step` needs about each tensor, and `IVON.observe`: step count, debiasing, 1 − β₂, noise keys."""
    t = tl.load(members + tl.program_id(0))
    row = table + t.to(tl.int64) * WIDTH
    number = numbers + tl.load(row + GROUP) * NUMBERED
    fact = facts + t * FACTS
    flag = tl.load(flags)
    active = (tl.load(gradients + t) != 0) & (flag == 0)
    for name in tl.static_range(NUMBERED):
        tl.store(fact + name, tl.load(number + name).to(tl.float32))
    tl.debug_barrier()  # they are read again below
    a, b = words(row, marks, 0)
    c, d = words(row, marks, 1)
    tl.store(keys + 4 * t, a.to(tl.int32, bitcast=True))
    tl.store(keys + 4 * t + 1, b.to(tl.int32, bitcast=True))
    tl.store(keys + 4 * t + 2, c.to(tl.int32, bitcast=True))
    tl.store(keys + 4 * t + 3, d.to(tl.int32, bitcast=True))
    if t == 0:
        for group in range(0, groups):
            skipped = tl.load(marks + group * MARKED + SKIPPED).to(tl.pointer_type(tl.int64))
            tl.store(skipped, tl.load(skipped) + flag)
    tl.store(fact + ACTIVE, active.to(tl.float32))
    if active:
        counter = address_of(row + STEP, 0, tl.float32, False)
        steps = tl.load(counter) + 1
        tl.store(counter, steps)
        if (steps <= 10) | (steps % 10 == 0):
            MEAN: tl.constexpr = BUFFER if HELD else P
            here, sums = gradients + t, products + t
            _observe(
                row, here, sums, fact, a, b, steps, MEAN, SAMPLED, SUMMED, PRIOR, TERM, SQUARES, TRANSPOSED, DTYPE, SOME
            )
        rate = tl.load(number + RHO2)
        spread = tl.load(address_of(row + SPREAD, 0, tl.float32, False)).to(tl.float64)
        if spread > 0:
            rate = tl.minimum(rate, tl.load(number + BIAS) / spread)
        forgetting = address_of(row + FORGETTING, 0, tl.float32, False)
        tl.store(forgetting, tl.load(forgetting) - tl.log(tl.maximum(1 - rate, 1e-9)).to(tl.float32))
        debias = 1 / (1 - tl.exp(tl.load(number + LOG_BETA1) * steps.to(tl.float64)))
        tl.store(fact + DEBIAS, debias.to(tl.float32))
        tl.store(fact + RATE, rate.to(tl.float32))
    else:
        tl.store(fact + RHO1, 0.0)
        tl.store(fact + RATE, 0.0)
        tl.store(fact + LR, 0.0)


@triton.jit
def _observe(
    row,
    gradient,
    product,
    fact,
    a,
    b,
    steps,
    MEAN: tl.constexpr,
    SAMPLED: tl.constexpr,
    SUMMED: tl.constexpr,
    PRIOR: tl.constexpr,
    TERM: tl.constexpr,
    SQUARES: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    DTYPE: tl.constexpr,
    SOME: tl.constexpr,
):
    """Averages of ĥ + δ, (ĥ − h)²/(h + δ) and h + δ over some of the weights."""
    size = tl.load(row + SIZE)
    stride = 1 + size // SOME
    index = tl.arange(0, SOME) * stride
    mask = index < size
    offset = index
    if TRANSPOSED:
        offset = transposed(index, tl.load(row + OUTER), tl.load(row + INNER))
    mean = get(address_of(row + MEAN, 0, DTYPE, False), offset, mask)
    g = get(address_of(gradient, 0, DTYPE, False), offset, mask)
    hessian = get(address_of(row + HESSIAN, 0, tl.float32, False), offset, mask)
    delta, _, _, quadratic = _get_terms(row, 0, fact, offset, mask, PRIOR, TERM, False)
    ess = tl.load(fact + ESS)
    width = width_of(hessian, delta, ess)
    noisy = tl.zeros_like(g)
    if SUMMED:
        noisy = get(address_of(product, 0, tl.float32, False), offset, mask)
    if SAMPLED:
        noisy += ((mean + normal_at(index, a, b) * width).to(DTYPE).to(tl.float32) - mean) * g
    surprise = _surprise(noisy, g, hessian, width * width * ess, quadratic, fact, SQUARES, TERM)
    precision = tl.where(mask, hessian + delta, 0.0)
    surprise = tl.where(mask, surprise, 0.0)
    count = ((size + stride - 1) // stride).to(tl.float32)
    weight = tl.maximum(1 / tl.where(steps <= 10, steps, 10 + tl.floor(steps / 10)), 0.02)
    places = address_of(row + LEVEL, 0, tl.float32, False)
    level = tl.load(places) + weight * (tl.sum(precision * (1 + surprise), axis=0) / count - tl.load(places))
    tl.store(places, level)
    places = address_of(row + SCATTER, 0, tl.float32, False)
    scatter = tl.load(places) + weight * (tl.sum(precision * surprise * surprise, axis=0) / count - tl.load(places))
    tl.store(places, scatter)
    spread = scatter / tl.maximum(level, tl.sum(precision, axis=0) / count)
    tl.store(address_of(row + SPREAD, 0, tl.float32, False), spread)
