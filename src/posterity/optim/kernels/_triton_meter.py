# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, import-untyped"
"""The meter of `Variational` in Triton: price, λ and widths without waiting for the device.

The equations are those of `posterity.optim._meter` and `posterity.optim.price`. Sums over all weights are taken in an
order that does not change, so that the same run gives the same bits.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

from posterity.optim import _meter, gap, price
from posterity.optim.kernels._meter_table import CONSTANTS as _CONSTANTS
from posterity.optim.kernels._meter_table import METER as _METER
from posterity.optim.kernels._pointer_table import ADAM_NUMBERS
from posterity.optim.kernels._triton_table import (
    DRAWS,
    GROUP,
    MARKED,
    SIZE,
    SKIPPED,
    STEP,
    UPDATES,
    WIDTH,
    address_of,
    words,
)

# Where the numbers of METER and CONSTANTS stand:
ESS, PAID, PER_ESS, LAST, SCALE, TOTAL = (
    tl.constexpr(_METER.index(name)) for name in ("ess", "paid", "per_ess", "last", "scale", "total")
)
CLIPPING, SPENT, OWED, TOLD, STEPS, MEASURED = (
    tl.constexpr(_METER.index(name)) for name in ("clipping", "spent", "owed", "known_per_ess", "steps", "measured")
)
PEAK, BATCH, CLIP, DUE, DRAWN, NEXT, EXAMPLES = (
    tl.constexpr(_METER.index(name)) for name in ("peak", "batch", "clip", "due", "drawn", "next", "examples")
)
TAUGHT, MOVED, ALLOWED = (tl.constexpr(_METER.index(name)) for name in ("taught", "moved", "allowed"))
N, BUDGET, LENGTH, KNOWN, SHARE, GIVEN, REFRESH, WATCHED, FOLLOWS = map(tl.constexpr, range(len(_CONSTANTS)))
LR, BETA1, BETA2, EPS, DECAY, COUPLED = map(tl.constexpr, range(len(ADAM_NUMBERS)))
NUMBERED = tl.constexpr(len(ADAM_NUMBERS))
# What each tensor has to know, float32; ESS and DELTA stand where IVON's kernels read them.
FACT_ESS, FACT_DELTA, FACT_RATE, FACT_ROOT, FACT_WEIGHT, FACT_BETA2, FACT_RHO2, FACT_EPS = map(tl.constexpr, range(8))
FACT_KEPT, FACT_COUPLED, NEXT_ESS, NEXT_FACTOR, FACT_FACTOR, NEXT_DELTA, FACT_ACTIVE = map(tl.constexpr, range(8, 15))
FACTS = tl.constexpr(16)
COLD, SMALLEST, LOG_KEPT = map(tl.constexpr, (_meter.COLD, _meter.SMALLEST, math.log(_meter.DECAY)))
KEPT = tl.constexpr(_meter.DECAY)  # of averages of squares
WINDOW, LEAST, MOST, SURE = map(tl.constexpr, (1 - 1 / price.WINDOW, price.LEAST, price.MOST, price.SURE))
FRESH, SHUT, AJAR = map(tl.constexpr, (price.FRESH, price.SHUT, price.AJAR))
GAP_SHARE, GAP_LEAST, GAP_MOST = map(tl.constexpr, (gap.SHARE, gap.LEAST, gap.MOST))
FORGETTING, GAP_USUAL, GAP_POWER, GAP_DOUBT = map(tl.constexpr, (gap.FORGETTING, gap.USUAL, gap.POWER, gap.DOUBT))
TINY, LINE = tl.constexpr(1e-30), tl.constexpr(16)


@triton.jit
def _examples(meter, constants, ess):
    """`Meter.examples` at this λ."""
    n, scale = tl.load(constants + N), tl.load(meter + SCALE)
    spread = tl.where(tl.load(constants + KNOWN) > 0, (n - tl.load(meter + BATCH)) / tl.maximum(n - 1, 1.0), 1.0)
    return scale / ((spread + scale / ess) * _left(meter))


@triton.jit
def _left(meter):
    """`Meter.left`."""
    measured = tl.load(meter + MEASURED).to(tl.float64)
    debiased = tl.load(meter + CLIPPING) / (1 - tl.exp(measured * LOG_KEPT)).to(tl.float32)
    return tl.where(measured > 0, debiased, 1.0)


@triton.jit
def debias(number, BETA: tl.constexpr, steps):
    """1 − βᵗ."""
    return 1 - tl.exp(tl.log(tl.load(number + BETA)) * steps.to(tl.float64))


@triton.jit
def _parameters(meter):
    """`Price.parameters`."""
    total, found, chance = tl.load(meter + TOTAL), _found(meter), _chance(meter)
    return tl.minimum(tl.maximum(found, total * LEAST), tl.maximum(total * MOST, found - chance))


@triton.jit
def _agreement(meter):
    """`Price.agreement`."""
    ratio = (_found(meter) + _chance(meter)) / tl.maximum(tl.load(meter + TOTAL), TINY)
    return tl.minimum(tl.maximum(ratio, 0.0), 1.0)


@triton.jit
def _found(meter):
    """The first of `Price._found`."""
    ess = tl.load(meter + ESS)
    return (tl.load(meter + PAID) + tl.load(meter + TOTAL) / ess) / (tl.load(meter + PER_ESS) + 1 / ess)


@triton.jit
def _chance(meter):
    """The second of `Price._found`."""
    told = tl.load(meter + PER_ESS) + 1 / tl.load(meter + ESS)
    return SURE * tl.sqrt(tl.load(meter + TOTAL) / (tl.load(meter + BATCH) * told))


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
    examples = _examples(meter, constants, ess)
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
                change = tl.minimum(tl.maximum(_parameters(meter) / tl.load(meter + TOTAL), 0.9), 1.1)
                batch = tl.minimum(tl.maximum(tl.load(meter + SCALE) * change, 1.0), n)
                tl.store(meter + SCALE, batch)
                tl.store(meter + BATCH, batch)
    tl.debug_barrier()
    tl.store(meter + EXAMPLES, _examples(meter, constants, tl.load(meter + ESS)))


# ── λ and what the step needs to know ────────────────────────────────────────────────────────────────────────────


@triton.jit
def _epochs(meter, constants):
    """How often each example has been seen, on average."""
    return (tl.load(meter + STEPS) * tl.load(meter + BATCH) / tl.load(constants + N)).to(tl.float64)


@triton.jit
def _done(meter, constants, lr):
    """The share of training that is done; see `Meter.progress`."""
    decayed = 1 - lr / tl.maximum(tl.load(meter + PEAK), TINY).to(tl.float64)
    progress = tl.maximum(decayed, 1 - tl.exp(-_epochs(meter, constants) / 10))
    length = tl.load(constants + LENGTH).to(tl.float64)
    return tl.where(length > 0, tl.load(meter + STEPS).to(tl.float64) / tl.maximum(length, 1.0), progress)


@triton.jit
def _following(meter, constants, lr):
    """`Meter.following`."""
    epochs, done = _epochs(meter, constants), tl.minimum(_done(meter, constants, lr), 1.0)
    seen_again = 1 - tl.exp(-tl.maximum(epochs - 1, 0.0) / 2)
    late = tl.maximum(done - SHUT, 0.0) / (1 - SHUT)
    opened = tl.maximum(late * late, AJAR) * (seen_again * (1 - FRESH) + FRESH)
    budget, allowed = tl.load(constants + BUDGET).to(tl.float64), tl.load(meter + ALLOWED).to(tl.float64)
    for _ in tl.static_range(GAP_DOUBT):
        allowed = allowed * _agreement(meter)
    allowed = tl.maximum(allowed, GAP_LEAST)
    follows, watched = tl.load(constants + FOLLOWS) > 0, tl.load(constants + WATCHED) > 0
    alone = budget * tl.where(follows, opened * allowed / GAP_MOST, opened)
    beside = tl.where(follows, tl.maximum(opened * allowed, budget), budget)
    budget = tl.maximum(tl.where(watched, beside, alone) * tl.load(constants + SHARE), 1e-12)
    return tl.maximum((_parameters(meter) / (2 * budget)).to(tl.float32), tl.load(constants + N))


@triton.jit
def _learn_gap(meter, constants, own_doing, lr):
    """`Meter.learn_gap`."""
    way, moved = tl.load(constants + REFRESH) * lr.to(tl.float32), tl.load(meter + MOVED)
    left = moved / tl.maximum(moved + way, TINY)
    taught = tl.load(meter + TAUGHT)
    for _ in tl.static_range(FORGETTING):
        taught = taught * left
    once = tl.load(meter + EXAMPLES) * tl.sqrt(_left(meter))
    own = tl.maximum(own_doing, 0.0).to(tl.float32) * once / tl.load(constants + N)
    taught = taught + tl.load(constants + REFRESH) * own
    usual = tl.maximum(GAP_USUAL * tl.load(meter + TOTAL) / tl.load(constants + N), 1e-12)
    worth = GAP_SHARE * taught
    for _ in tl.static_range(GAP_POWER):
        worth = worth * tl.minimum(taught / usual, 1.0)
    tl.store(meter + TAUGHT, taught)
    tl.store(meter + MOVED, moved + way)
    tl.store(meter + ALLOWED, tl.minimum(tl.maximum(worth, GAP_LEAST), GAP_MOST))


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
        if _done(meter, constants, lr) <= SHUT:
            _learn_gap(meter, constants, sum_of(own_doing, parts, LANES), lr)
    tl.debug_barrier()
    ess = tl.where(flag == 0, _following(meter, constants, lr), tl.load(meter + ESS))
    examples = _examples(meter, constants, ess)
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
