# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, import-untyped"
"""Looks of `Variational` at all weights in Triton: widths of priors, effective parameters, and the gap of `gap.py`."""

from __future__ import annotations

import triton
import triton.language as tl

from posterity.optim.kernels._triton_meter import BETA1, BETA2, COUPLED, EPS, LR, NUMBERED, SMALLEST, debias, sum_of
from posterity.optim.kernels._triton_price import DUE, EXAMPLES, GIVEN, N
from posterity.optim.kernels._triton_table import BUFFER, GROUP, HESSIAN, MOMENTUM, SIZE, STEP, WIDTH, P, address_of


@triton.jit
def _part(table, parts, PART: tl.constexpr):
    """The tensor of which a program looks at a part, its row, and where that part begins and ends."""
    t, part = tl.load(parts + 2 * tl.program_id(0)), tl.load(parts + 2 * tl.program_id(0) + 1)
    row, begin = table + t.to(tl.int64) * WIDTH, part.to(tl.int64) * PART
    return t, row, begin, tl.minimum(begin + PART, tl.load(row + SIZE))


@triton.jit
def look_at_means(table, parts, meter, partial, HELD: tl.constexpr, PART: tl.constexpr, LANES: tl.constexpr):
    """Σ m² of a part of a tensor, if it is time to look."""
    if tl.load(meter + DUE) > 0:
        _, row, first, length = _part(table, parts, PART)
        MEAN: tl.constexpr = BUFFER if HELD else P
        mean = address_of(row + MEAN, 0, tl.float32, False)
        total = tl.zeros((LANES,), dtype=tl.float32)
        for begin in range(first, length, LANES):
            index = begin + tl.arange(0, LANES)
            m = tl.load(mean + index, mask=index < length, other=0.0)
            total += m * m
        tl.store(partial + tl.program_id(0), tl.sum(total, axis=0))


@triton.jit
def look_at_widths(
    table,
    parts,
    starts,
    numbers,
    meter,
    constants,
    deltas,
    quiet,
    squares,
    gradients,
    partial,
    own_doing,
    growing,
    HELD: tl.constexpr,
    PART: tl.constexpr,
    LANES: tl.constexpr,
):
    """If it is time to look: δ of a tensor from its mean square, and of a part Σ h/(h + δ), η (ĝ − ḡ)ᵀDĝ and −mᵀḡ."""
    if tl.load(meter + DUE) > 0:
        t, row, first, length = _part(table, parts, PART)
        delta = tl.load(deltas + t)
        if tl.load(constants + GIVEN) == 0:
            start, count = tl.load(starts + t), tl.load(starts + t + 1) - tl.load(starts + t)
            square = sum_of(squares + start, count, LANES).to(tl.float32) / tl.load(row + SIZE).to(tl.float32)
            delta = tl.load(quiet + t) / (tl.load(constants + N) * tl.maximum(square, SMALLEST))
            if first == 0:
                tl.store(deltas + t, delta)
        steps = tl.load(address_of(row + STEP, 0, tl.float32, False))
        number = numbers + tl.load(row + GROUP) * NUMBERED
        factor = (tl.load(meter + EXAMPLES) / debias(number, BETA2, steps)).to(tl.float32)
        before = (1 / debias(number, BETA1, steps)).to(tl.float32)
        correction = (1 / debias(number, BETA2, steps + 1)).to(tl.float32)
        beta2, eps = tl.load(number + BETA2).to(tl.float32), tl.load(number + EPS).to(tl.float32)
        rho2, coupled = (1 - tl.load(number + BETA2)).to(tl.float32), tl.load(number + COUPLED).to(tl.float32)
        averages = address_of(row + MOMENTUM, 0, tl.float32, False)
        second = address_of(row + HESSIAN, 0, tl.float32, False)
        gradient = address_of(gradients + t, 0, tl.float32, False)
        MEAN: tl.constexpr = BUFFER if HELD else P
        mean = address_of(row + MEAN, 0, tl.float32, False)
        known = length * (tl.load(gradients + t) != 0).to(tl.int64)
        total, own = tl.zeros((LANES,), dtype=tl.float32), tl.zeros((LANES,), dtype=tl.float32)
        met = tl.zeros((LANES,), dtype=tl.float32)
        for begin in range(first, length, LANES):
            index = begin + tl.arange(0, LANES)
            v = tl.load(second + index, mask=index < length, other=0.0)
            h = v * factor
            total += h / (h + delta)
            m = tl.load(averages + index, mask=index < length, other=0.0)
            g = tl.load(gradient + index, mask=index < known, other=0.0)
            weight = tl.load(mean + index, mask=index < known, other=0.0)
            m = m * before - coupled * weight  # without what coupled decay and a prior have added
            met += weight * m
            own += (g - m) * g / (tl.sqrt((v * beta2 + rho2 * g * g) * correction) + eps)
        tl.store(partial + tl.program_id(0), tl.sum(total, axis=0))
        tl.store(own_doing + tl.program_id(0), tl.sum(own, axis=0) * tl.load(number + LR).to(tl.float32))
        tl.store(growing + tl.program_id(0), -tl.sum(met, axis=0))
