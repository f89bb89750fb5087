# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, import-untyped"
"""The equations of `posterity.optim._meter`, `price` and `gap` in Triton, from the numbers of a run on the device."""

from __future__ import annotations

import math

import triton
import triton.language as tl

from posterity.optim import _meter, gap, price
from posterity.optim.kernels._meter_table import CONSTANTS as _CONSTANTS
from posterity.optim.kernels._meter_table import METER as _METER

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
TAUGHT, MOVED, SETTLED, GROWTH, LOOKS = (
    tl.constexpr(_METER.index(name)) for name in ("taught", "moved", "settled", "growing", "looks")
)
N, BUDGET, LENGTH, KNOWN, SHARE, GIVEN, REFRESH, WATCHED, FOLLOWS = map(tl.constexpr, range(len(_CONSTANTS)))
LOG_KEPT, TINY = map(tl.constexpr, (math.log(_meter.DECAY), 1e-30))
LEAST, MOST, SURE = map(tl.constexpr, (price.LEAST, price.MOST, price.SURE))
FRESH, SHUT, AJAR = map(tl.constexpr, (price.FRESH, price.SHUT, price.AJAR))
GAP_SHARE, GAP_LEAST, GAP_MOST = map(tl.constexpr, (gap.SHARE, gap.LEAST, gap.MOST))
FORGETTING, GAP_USUAL, GAP_POWER = map(tl.constexpr, (gap.FORGETTING, gap.USUAL, gap.POWER))
GAP_DOUBT, GAP_GROWN, GAP_GROWING = map(tl.constexpr, (gap.DOUBT, gap.GROWN, gap.GROWING))
GAP_CAUTION, GAP_NOISY, FEW = map(tl.constexpr, (gap.CAUTION, gap.NOISY, float(_meter.FEW)))


@triton.jit
def examples_of(meter, constants, ess):
    """`Meter.examples` at this λ."""
    n, scale = tl.load(constants + N), tl.load(meter + SCALE)
    spread = tl.where(tl.load(constants + KNOWN) > 0, (n - tl.load(meter + BATCH)) / tl.maximum(n - 1, 1.0), 1.0)
    return scale / ((spread + scale / ess) * left(meter))


@triton.jit
def left(meter):
    """`Meter.left`."""
    measured = tl.load(meter + MEASURED).to(tl.float64)
    debiased = tl.load(meter + CLIPPING) / (1 - tl.exp(measured * LOG_KEPT)).to(tl.float32)
    return tl.where(measured > 0, debiased, 1.0)


@triton.jit
def parameters(meter):
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
def _epochs(meter, constants):
    """How often each example has been seen, on average."""
    return (tl.load(meter + STEPS) * tl.load(meter + BATCH) / tl.load(constants + N)).to(tl.float64)


@triton.jit
def share_done(meter, constants, lr):
    """The share of training that is done; see `Meter.progress`."""
    decayed = 1 - lr / tl.maximum(tl.load(meter + PEAK), TINY).to(tl.float64)
    progress = tl.maximum(decayed, 1 - tl.exp(-_epochs(meter, constants) / 10))
    length = tl.load(constants + LENGTH).to(tl.float64)
    return tl.where(length > 0, tl.load(meter + STEPS).to(tl.float64) / tl.maximum(length, 1.0), progress)


@triton.jit
def following(meter, constants, lr):
    """`Meter.following`."""
    epochs, done = _epochs(meter, constants), tl.minimum(share_done(meter, constants, lr), 1.0)
    seen_again = 1 - tl.exp(-tl.maximum(epochs - 1, 0.0) / 2)
    late = tl.maximum(done - SHUT, 0.0) / (1 - SHUT)
    opened = tl.maximum(late * late, AJAR) * (seen_again * (1 - FRESH) + FRESH)
    budget, allowed = tl.load(constants + BUDGET).to(tl.float64), _worth(meter, constants)
    settled = tl.load(meter + SETTLED) / tl.maximum(tl.load(meter + TOTAL), TINY)
    believed = _agreement(meter) * tl.minimum(GAP_GROWN * settled, 1.0)
    caution = GAP_GROWING / tl.maximum(tl.load(meter + GROWTH), GAP_GROWING)
    for _ in tl.static_range(GAP_DOUBT):
        allowed = allowed * believed
    for _ in tl.static_range(GAP_CAUTION):
        allowed = allowed * caution
    allowed = tl.maximum(allowed, GAP_LEAST)
    follows, watched = tl.load(constants + FOLLOWS) > 0, tl.load(constants + WATCHED) > 0
    alone = budget * tl.where(follows, opened * allowed / GAP_MOST, opened)
    beside = tl.where(follows, tl.maximum(opened * allowed, budget), budget)
    budget = tl.maximum(tl.where(watched, beside, alone) * tl.load(constants + SHARE), 1e-12)
    return tl.maximum((parameters(meter) / (2 * budget)).to(tl.float32), tl.load(constants + N))


@triton.jit
def _worth(meter, constants):
    """`gap.worth` of the gap that was learnt."""
    taught = tl.load(meter + TAUGHT).to(tl.float64)
    usual = GAP_USUAL * tl.load(meter + SETTLED).to(tl.float64) / tl.load(constants + N).to(tl.float64)
    memorised, found = tl.minimum(taught / tl.maximum(usual, 1e-12), 1.0), GAP_SHARE * taught
    for _ in tl.static_range(GAP_POWER):
        found = found * memorised
    return tl.minimum(tl.maximum(found, GAP_LEAST), GAP_MOST)


@triton.jit
def learn_growing(meter, done, growing):
    """The first part of `Meter.learn_gap`: U."""
    if done <= GAP_NOISY:
        before, looks = tl.load(meter + GROWTH), tl.load(meter + LOOKS)
        looks = tl.where(done > SHUT, tl.maximum(looks, 0.0) + 1, tl.minimum(tl.maximum(looks - 1, -FEW), -1.0))
        tl.store(meter + LOOKS, looks)
        tl.store(meter + GROWTH, before + (growing.to(tl.float32) / tl.sqrt(left(meter)) - before) / tl.abs(looks))


@triton.jit
def learn_gap(meter, constants, own_doing, lr):
    """The rest of `Meter.learn_gap`: G."""
    way, moved = tl.load(constants + REFRESH) * lr.to(tl.float32), tl.load(meter + MOVED)
    kept = moved / tl.maximum(moved + way, TINY)
    taught = tl.load(meter + TAUGHT)
    for _ in tl.static_range(FORGETTING):
        taught = taught * kept
    once = tl.load(meter + EXAMPLES) * tl.sqrt(left(meter))
    own = tl.maximum(own_doing, 0.0).to(tl.float32) * once / tl.load(constants + N)
    taught = taught + tl.load(constants + REFRESH) * own
    tl.store(meter + TAUGHT, taught)
    tl.store(meter + MOVED, moved + way)
    tl.store(meter + SETTLED, tl.load(meter + TOTAL))
