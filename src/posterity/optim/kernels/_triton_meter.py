# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, import-untyped"
"""The meter of `Variational` in Triton: price, λ and widths without waiting for the device.

The equations are in `_triton_price`. Sums over all weights are taken in an order that does not change, so that the same
run gives the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from posterity.optim import _meter, _normalised, price
from posterity.optim.kernels._pointer_table import ADAM_NUMBERS
from posterity.optim.kernels._triton_price import (
    BATCH,
    CLIP,
    CLIPPING,
    DRAWN,
    DUE,
    ESS,
    EXAMPLES,
    GIVEN,
    KNOWN,
    LAST,
    LENGTH,
    MEASURED,
    NEXT,
    OWED,
    PAID,
    PEAK,
    PER_ESS,
    REFRESH,
    SCALE,
    SHUT,
    SPENT,
    STEPS,
    TINY,
    TOLD,
    TOTAL,
    N,
    examples_of,
    following,
    learn_gap,
    learn_growing,
    parameters,
    share_done,
)
from posterity.optim.kernels._triton_table import (
    DRAWS,
    GROUP,
    MARKED,
    SIZE,
    SKIPPED,
    STEP,
    STILL,
    UPDATES,
    WIDTH,
    address_of,
    words,
)

LR, BETA1, BETA2, EPS, DECAY, COUPLED = map(tl.constexpr, range(len(ADAM_NUMBERS)))
NUMBERED = tl.constexpr(len(ADAM_NUMBERS))
# What each tensor has to know, float32; ESS and DELTA stand where IVON's kernels read them.
FACT_ESS, FACT_DELTA, FACT_RATE, FACT_ROOT, FACT_WEIGHT, FACT_BETA2, FACT_RHO2, FACT_EPS = map(tl.constexpr, range(8))
FACT_KEPT, FACT_COUPLED, NEXT_ESS, NEXT_FACTOR, FACT_FACTOR, NEXT_DELTA, FACT_ACTIVE = map(tl.constexpr, range(8, 15))
FACTS = tl.constexpr(16)
COLD, SMALLEST = map(tl.constexpr, (_meter.COLD, _meter.SMALLEST))
KEPT, WINDOW = map(tl.constexpr, (_meter.DECAY, 1 - 1 / price.WINDOW))  # of averages of squares, and of prices
LINE, QUIET = map(tl.constexpr, (16, _normalised.QUIET))


@triton.jit
def debias(number, BETA: tl.constexpr, steps):
    """1 − βᵗ."""
    return 1 - tl.exp(tl.log(tl.load(number + BETA)) * steps.to(tl.float64))


@triton.jit
def _still(constants):
    """`Course.still`."""
    return tl.where(tl.load(constants + GIVEN) > 0, 1.0, QUIET)


@triton.jit
def widths(
    table,
    marks,
    numbers,
    keys,
    facts,
    deltas,
    meter,
    constants,
    count,
    groups,
    ADVANCE: tl.constexpr,
    KEEP: tl.constexpr,
    LANES: tl.constexpr,
):
    """What the noise of every tensor depends on, in the last draw, or in the next with ADVANCE 1, which then counts.

    To KEEP the widths is to draw the last sample again, whatever has moved since.
    """
    ess = tl.load(meter + ESS)
    examples, still = examples_of(meter, constants, ess), _still(constants)
    for begin in range(0, count, LANES):
        t = begin + tl.arange(0, LANES)
        here = t < count
        row = table + tl.minimum(t, count - 1) * WIDTH
        number = numbers + tl.load(row + GROUP) * NUMBERED
        steps = tl.load(tl.load(row + STEP).to(tl.pointer_type(tl.float32)))
        factor = (examples / debias(number, BETA2, steps)).to(tl.float32)
        a, b = words(row, marks, ADVANCE)
        tl.store(keys + 4 * t, a.to(tl.int32, bitcast=True), mask=here)
        tl.store(keys + 4 * t + 1, b.to(tl.int32, bitcast=True), mask=here)
        if not KEEP:
            tl.store(facts + FACTS * t + FACT_ESS, tl.zeros_like(factor) + ess, mask=here)
            tl.store(facts + FACTS * t + FACT_DELTA, tl.load(deltas + t, mask=here), mask=here)
            tl.store(facts + FACTS * t + FACT_FACTOR, factor, mask=here)
            tl.store(facts + FACTS * t + STILL, tl.zeros_like(factor) + still, mask=here)
    tl.debug_barrier()
    for group in range(0, groups):
        counter = tl.load(marks + group * MARKED + DRAWS).to(tl.pointer_type(tl.int64))
        tl.store(counter, tl.load(counter) + ADVANCE)


@triton.jit
def size(table, gradients, sizes, SOME: tl.constexpr):
    """Σ gradient² over some weights of each tensor, in whole lines of memory."""
    t = tl.program_id(0)
    length = tl.load(table + t.to(tl.int64) * WIDTH + SIZE) * (tl.load(gradients + t) != 0).to(tl.int64)
    lane, stride = tl.arange(0, SOME), 1 + (length + LINE - 1) // LINE // (SOME // LINE)
    index = lane // LINE * stride * LINE + lane % LINE
    gradient = tl.load(address_of(gradients + t, 0, tl.float32, False) + index, mask=index < length, other=0.0)
    tl.store(sizes + t, tl.sum(gradient * gradient, axis=0))


@triton.jit
def sum_of(values, count, LANES: tl.constexpr):
    """Σ of a vector, by one program."""
    lane = tl.arange(0, LANES)
    total = tl.zeros((LANES,), dtype=tl.float64)
    for begin in range(0, count, LANES):
        total += tl.load(values + begin + lane, mask=begin + lane < count, other=0.0).to(tl.float64)
    return tl.sum(total, axis=0)


@triton.jit
def _largest(values, starts, matrices, count, LANES: tl.constexpr):
    """`gap.largest` of the sums over parts of each matrix, by one program."""
    found = tl.sum(tl.zeros((LANES,), dtype=tl.float64), axis=0)
    for t in range(0, count):
        start = tl.load(starts + t)
        value = sum_of(values + start, tl.load(starts + t + 1) - start, LANES)
        value = tl.where(tl.load(matrices + t) != 0, value, 0.0)
        found = tl.where(tl.abs(value) > tl.abs(found), value, found)
    return found


@triton.jit
def begin_step(before, now, meter, constants, numbers, marks, flags, count, groups, LANES: tl.constexpr):
    """Count the step and what clipping has left of its gradients, or that it is skipped."""
    then, size_now = sum_of(before, count, LANES), sum_of(now, count, LANES)
    ratio = tl.sqrt(tl.where(then > 0, size_now / tl.maximum(then, TINY), 1.0).to(tl.float32))
    scale = tl.where(ratio <= 0.0009765625, tl.exp2(tl.floor(-tl.log2(tl.maximum(ratio, TINY)))), 1.0)
    clip = tl.minimum(ratio * scale, 1.0)
    flag = tl.load(flags)
    lr = tl.load(numbers + LR)
    for group in range(0, groups):
        lr = tl.maximum(lr, tl.load(numbers + group * NUMBERED + LR))
        skipped = tl.load(marks + group * MARKED + SKIPPED).to(tl.pointer_type(tl.int64))
        tl.store(skipped, tl.load(skipped) + flag)
    tl.store(meter + CLIP, clip)
    tl.store(meter + DRAWN, tl.load(meter + ESS))
    tl.store(meter + DUE, 0.0)
    if flag == 0:
        steps, n = tl.load(meter + STEPS) + 1, tl.load(constants + N)
        tl.store(meter + CLIPPING, tl.load(meter + CLIPPING) * KEPT + clip * clip * (1 - KEPT))
        tl.store(meter + MEASURED, tl.load(meter + MEASURED) + 1)
        tl.store(meter + STEPS, steps)
        tl.store(meter + PEAK, tl.maximum(tl.load(meter + PEAK), lr.to(tl.float32)))
        if (steps - COLD) % tl.load(constants + REFRESH) == 0:
            tl.store(meter + DUE, 1.0)
            if (tl.load(constants + KNOWN) == 0) & (steps > COLD):
                change = tl.minimum(tl.maximum(parameters(meter) / tl.load(meter + TOTAL), 0.9), 1.1)
                batch = tl.minimum(tl.maximum(tl.load(meter + SCALE) * change, 1.0), n)
                tl.store(meter + SCALE, batch)
                tl.store(meter + BATCH, batch)
    tl.debug_barrier()
    tl.store(meter + EXAMPLES, examples_of(meter, constants, tl.load(meter + ESS)))


# ── λ and what the step needs to know ────────────────────────────────────────────────────────────────────────────


@triton.jit
def plan(
    table,
    marks,
    numbers,
    gradients,
    keys,
    facts,
    deltas,
    meter,
    constants,
    effective,
    own_doing,
    growing,
    starts,
    matrices,
    flags,
    count,
    groups,
    parts,
    LANES: tl.constexpr,
):
    """λ of the next sample, and the numbers of every tensor's step; skipped steps have rates of 0."""
    flag = tl.load(flags)
    lr = tl.load(numbers + LR)
    for group in range(0, groups):
        lr = tl.maximum(lr, tl.load(numbers + group * NUMBERED + LR))
    if tl.load(meter + DUE) > 0:
        tl.store(meter + TOTAL, sum_of(effective, parts, LANES).to(tl.float32))
        tl.debug_barrier()
        done = share_done(meter, constants, lr)
        learn_growing(meter, done, _largest(growing, starts, matrices, count, LANES))
        if done <= SHUT:
            learn_gap(meter, constants, sum_of(own_doing, parts, LANES), lr)
    tl.debug_barrier()
    ess = tl.where(flag == 0, following(meter, constants, lr), tl.load(meter + ESS))
    examples, still = examples_of(meter, constants, ess), _still(constants)
    tl.store(meter + NEXT, ess)
    for begin in range(0, count, LANES):
        t = begin + tl.arange(0, LANES)
        here = t < count
        row = table + tl.minimum(t, count - 1) * WIDTH
        number = numbers + tl.load(row + GROUP) * NUMBERED
        there = (tl.load(gradients + t, mask=here, other=0) != 0).to(tl.int32)
        active = t < there * count * (flag == 0).to(tl.int32)
        counter = tl.load(row + STEP).to(tl.pointer_type(tl.float32))
        updates = tl.load(row + UPDATES).to(tl.pointer_type(tl.float32))
        steps = tl.load(counter) + active.to(tl.float32)
        tl.store(counter, steps, mask=active)
        tl.store(updates, tl.load(updates) + 1, mask=active)
        rate, decay = tl.load(number + LR), tl.load(number + DECAY)
        beta1, beta2 = tl.load(number + BETA1), tl.load(number + BETA2)
        first, second = debias(number, BETA1, steps), debias(number, BETA2, steps)
        fact = facts + FACTS * t
        tl.store(fact + FACT_RATE, tl.where(active, rate / first, 0.0).to(tl.float32), mask=here)
        tl.store(fact + FACT_ROOT, tl.sqrt(second).to(tl.float32), mask=here)
        tl.store(fact + FACT_WEIGHT, tl.where(active, 1 - beta1, 0.0).to(tl.float32), mask=here)
        tl.store(fact + FACT_BETA2, tl.where(active, beta2, 1.0).to(tl.float32), mask=here)
        tl.store(fact + FACT_RHO2, tl.where(active, 1 - beta2, 0.0).to(tl.float32), mask=here)
        tl.store(fact + FACT_EPS, tl.load(number + EPS).to(tl.float32), mask=here)
        tl.store(fact + FACT_KEPT, tl.where(active, 1 - rate * decay, 1.0).to(tl.float32), mask=here)
        tl.store(fact + FACT_COUPLED, tl.where(active, tl.load(number + COUPLED), 0.0).to(tl.float32), mask=here)
        tl.store(fact + FACT_ACTIVE, active.to(tl.float32), mask=here)
        tl.store(fact + NEXT_ESS, tl.zeros_like(steps) + ess, mask=here)
        tl.store(fact + NEXT_FACTOR, (examples / second).to(tl.float32), mask=here)
        tl.store(fact + NEXT_DELTA, tl.load(deltas + t, mask=here), mask=here)
        tl.store(fact + STILL, tl.zeros_like(steps) + still, mask=here)
        a, b = words(row, marks, 0)
        c, d = words(row, marks, 1)
        tl.store(keys + 4 * t, a.to(tl.int32, bitcast=True), mask=here)
        tl.store(keys + 4 * t + 1, b.to(tl.int32, bitcast=True), mask=here)
        tl.store(keys + 4 * t + 2, c.to(tl.int32, bitcast=True), mask=here)
        tl.store(keys + 4 * t + 3, d.to(tl.int32, bitcast=True), mask=here)


@triton.jit
def end_step(
    sums,
    partial,
    facts,
    meter,
    constants,
    flags,
    blocks,
    count,
    AHEAD: tl.constexpr,
    PARTS: tl.constexpr,
    LANES: tl.constexpr,
):
    """Σ of the products of all blocks, every PARTS-th stretch by a program; the last one to end adds them up.

    That one is `Meter.pay`. With AHEAD, the sample in place is the next one, and its numbers are those of the present.
    """
    lane = tl.arange(0, LANES)
    total = tl.zeros((LANES,), dtype=tl.float64)
    for begin in range(tl.program_id(0) * LANES, blocks, PARTS * LANES):
        total += tl.load(sums + begin + lane, mask=begin + lane < blocks, other=0.0).to(tl.float64)
    tl.store(partial + tl.program_id(0), tl.sum(total, axis=0))
    tl.debug_barrier()
    if tl.atomic_add(flags + 1, 1, sem="acq_rel") == PARTS - 1:
        _pay(partial, facts, meter, constants, flags, count, AHEAD, PARTS, LANES)


@triton.jit
def _pay(
    partial,
    facts,
    meter,
    constants,
    flags,
    count,
    AHEAD: tl.constexpr,
    PARTS: tl.constexpr,
    LANES: tl.constexpr,
):
    """The end of a step, by one program."""
    if tl.load(flags) == 0:
        product = tl.sum(tl.load(partial + tl.arange(0, PARTS), volatile=True), axis=0).to(tl.float32)
        cost, drawn = 0.5 * product / tl.load(meter + CLIP), tl.load(meter + DRAWN)
        tl.store(meter + LAST, cost)
        tl.store(meter + PAID, tl.load(meter + PAID) * WINDOW + 2 * cost)
        tl.store(meter + PER_ESS, tl.load(meter + PER_ESS) * WINDOW + 1 / drawn)
        tl.store(meter + SPENT, tl.load(meter + SPENT) + 2 * cost)
        tl.store(meter + OWED, tl.load(meter + OWED) + tl.load(meter + TOTAL) / drawn)
        kept = tl.where(tl.load(constants + LENGTH) > 0, 1.0, KEPT)
        tl.store(meter + TOLD, kept * tl.load(meter + TOLD) + 1 / drawn)
        tl.store(meter + ESS, tl.load(meter + NEXT))
    tl.debug_barrier()
    tl.store(flags, 0)
    tl.store(flags + 1, 0)
    if AHEAD:
        for begin in range(0, count, LANES):
            t = begin + tl.arange(0, LANES)
            here, fact = t < count, facts + FACTS * t
            tl.store(fact + FACT_ESS, tl.load(fact + NEXT_ESS, mask=here), mask=here)
            tl.store(fact + FACT_FACTOR, tl.load(fact + NEXT_FACTOR, mask=here), mask=here)
            tl.store(fact + FACT_DELTA, tl.load(fact + NEXT_DELTA, mask=here), mask=here)
