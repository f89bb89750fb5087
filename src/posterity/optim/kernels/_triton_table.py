# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, import-untyped"
"""The noise of `posterity.noise` in Triton, and reading and writing through a table of addresses.

Capitals are constants at compile time, `row` is a tensor's row of the table, and a `cell` of it holds an address.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

from posterity.noise import HALF as _HALF
from posterity.noise import ROUNDS
from posterity.optim.kernels._pointer_table import COLUMNS, MARKS, NUMBERS
from posterity.optim.kernels._pointer_table import FACTS as _FACTS

HALF = tl.constexpr(_HALF)
S1, S2, S3, S4, S5, S6 = (tl.constexpr(shift) for shift, _ in ROUNDS)
M1, M2, M3, M4, M5, M6 = (tl.constexpr(multiplier) for _, multiplier in ROUNDS)
UNIT, TURN = tl.constexpr(2.0**-31), tl.constexpr(math.pi * 2.0**-31)
QUARTER = tl.constexpr(1 << 30)  # of a turn

# In the order of COLUMNS, FACTS (which begin with NUMBERS) and MARKS:
P, BUFFER, MOMENTUM, HESSIAN, PRIOR_MEAN, PRIOR_PRECISION, LINEAR, QUADRATIC = map(tl.constexpr, range(8))
STEP, FORGETTING, LEVEL, SCATTER, SPREAD, UPDATES = map(tl.constexpr, range(8, 14))
SIZE, GROUP, INDEX, START, INNER, OUTER = map(tl.constexpr, range(14, 20))
ESS, DELTA, RHO1, RHO2, BIAS, LOG_BETA1, LR, CLIP, BATCH, RATE, DEBIAS, ACTIVE, FACTOR = map(tl.constexpr, range(13))
STILL = tl.constexpr(15)
SEED, SAMPLE, DRAWS, SKIPPED = map(tl.constexpr, range(4))
WIDTH, NUMBERED, FACTS, MARKED = (tl.constexpr(len(names)) for names in (COLUMNS, NUMBERS, _FACTS, MARKS))


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
    cosine, sine = _cos_sin(second.to(tl.int32, bitcast=True))
    return cosine * radius, sine * radius


@triton.jit
def _cos_sin(word):
    """Of word/2³¹ half turns, within two units in the last place; the nearest quarter turn is in the leading bits."""
    quarters = (word + QUARTER // 2) >> 30
    x = (word - quarters * QUARTER).to(tl.float32) * TURN
    z = x * x
    sine = x + x * z * (-1.6666654611e-1 + z * (8.3321608736e-3 - z * 1.9515295891e-4))
    cosine = 1.0 - 0.5 * z + z * z * (4.166664568298827e-2 + z * (-1.388731625493765e-3 + z * 2.443315711809948e-5))
    odd = (quarters & 1) != 0
    c, s = tl.where(odd, sine, cosine), tl.where(odd, cosine, sine)
    return _flip(c, (quarters + 1) & 2), _flip(s, quarters & 2)


@triton.jit
def _flip(x, two):
    """−x where `two` is 2, x where it is 0."""
    return (x.to(tl.int32, bitcast=True) ^ (two << 30)).to(tl.float32, bitcast=True)


@triton.jit
def normal_at(index, a, b):
    """The normal of each index of a parameter."""
    within = index % (2 * HALF)
    counter = index // (2 * HALF) * HALF + within % HALF
    cosine, sine = _normals(counter.to(tl.uint32), a, b)
    return tl.where(within < HALF, cosine, sine)


@triton.jit
def transposed(index, inner, outer):
    """Where an index goes when each matrix of (outer, inner) in a batch of them is transposed."""
    matrix = inner * outer
    return index - index % matrix + index % inner * outer + index % matrix // inner


@triton.jit
def noise_of(row, begin, lane, a, b, TRANSPOSED: tl.constexpr):
    """The normals of both halves of a block of memory."""
    start = tl.load(row + START)
    if TRANSPOSED:
        inner, outer = tl.load(row + INNER), tl.load(row + OUTER)
        left = normal_at(start + transposed(begin + lane, inner, outer), a, b)
        right = normal_at(start + transposed(begin + HALF + lane, inner, outer), a, b)
    else:
        left, right = _normals(((start + begin) // 2).to(tl.uint32) + lane.to(tl.uint32), a, b)
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
    a, b = _absorb(a, b, tl.load(mark + SAMPLE))
    return _absorb(a, b, tl.load(row + INDEX))


# ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────


@triton.jit
def address_of(cell, begin, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """Where a block begins; read once, since every write may change the cell for all that the compiler knows."""
    address = tl.load(cell).to(tl.pointer_type(DTYPE)) + begin
    if ALIGNED:
        address = tl.multiple_of(address, 16)  # lets the compiler move four numbers at a time
    return address


@triton.jit
def get(address, offset, mask):
    return tl.load(address + offset, mask=mask).to(tl.float32)


@triton.jit
def put(address, values, offset, mask):
    tl.store(address + offset, values.to(address.dtype.element_ty), mask=mask)


@triton.jit
def find_block(blocks, table, program, ALIGNED: tl.constexpr):
    """The tensor that a program works on, its row, where in it to begin, and how much of it is left from there."""
    t, block = tl.load(blocks + 2 * program), tl.load(blocks + 2 * program + 1)
    row, begin = table + t.to(tl.int64) * WIDTH, block.to(tl.int64) * (2 * HALF)
    rest = tl.minimum(tl.load(row + SIZE) - begin, 2 * HALF).to(tl.int32)
    if ALIGNED:
        rest = tl.multiple_of(rest, 4)  # so that four numbers share a mask
    return t, row, begin, rest
