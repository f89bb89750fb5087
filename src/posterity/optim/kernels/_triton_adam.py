# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, import-untyped"
"""A step of `Variational` over Adam in Triton, and the price of its sample, in one pass over memory.

A program works on one noise block; the noise is drawn again, not stored. Adam's averages are in the columns of the
momentum (of gradients) and of the Hessian (of their squares).
"""

from __future__ import annotations

import triton
import triton.language as tl

from posterity.optim.kernels._triton_meter import (
    FACT_ACTIVE,
    FACT_BETA2,
    FACT_COUPLED,
    FACT_DELTA,
    FACT_EPS,
    FACT_ESS,
    FACT_FACTOR,
    FACT_KEPT,
    FACT_RATE,
    FACT_RHO2,
    FACT_ROOT,
    FACT_WEIGHT,
    FACTS,
    NEXT_DELTA,
    NEXT_ESS,
    NEXT_FACTOR,
)
from posterity.optim.kernels._triton_sample import delta_of, key_of, width_of
from posterity.optim.kernels._triton_step import lerp
from posterity.optim.kernels._triton_table import (
    BUFFER,
    HALF,
    HESSIAN,
    MOMENTUM,
    STILL,
    P,
    address_of,
    find_block,
    get,
    noise_of,
    put,
)


@triton.jit
def _equations(mean, gradient, average, squares, noise, fact):
    """torch.optim.AdamW of one half of a block, and Σ noise · gradient of it; COUPLED is L2, of Adam or of a prior."""
    delta = delta_of(tl.load(fact + FACT_DELTA), mean, squares, tl.load(fact + STILL))
    width = width_of(squares * tl.load(fact + FACT_FACTOR), delta, tl.load(fact + FACT_ESS))
    product = ((mean + noise * width) - mean) * gradient
    gradient += tl.load(fact + FACT_COUPLED) * mean
    average = lerp(average, gradient, tl.load(fact + FACT_WEIGHT))
    squares = squares * tl.load(fact + FACT_BETA2) + tl.load(fact + FACT_RHO2) * gradient * gradient
    scale = tl.sqrt(squares) / tl.load(fact + FACT_ROOT) + tl.load(fact + FACT_EPS)
    mean = mean * tl.load(fact + FACT_KEPT) - tl.load(fact + FACT_RATE) * average / scale
    return mean, average, squares, product


@triton.jit
def adam(
    table,
    blocks,
    gradients,
    keys,
    facts,
    sums,
    AHEAD: tl.constexpr,
    HELD: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Update averages and mean; p gets the mean, or the sample AHEAD while the buffer gets the mean.

    With HELD the mean is in the buffer, because p still has the sample; it is put back even if the step is skipped.
    """
    t, row, begin, rest = find_block(blocks, table, tl.program_id(0), ALIGNED)
    left = tl.arange(0, HALF)
    right = left + HALF
    some, others = left < rest, right < rest
    p, buffer = address_of(row + P, begin, tl.float32, ALIGNED), address_of(row + BUFFER, begin, tl.float32, ALIGNED)
    average = address_of(row + MOMENTUM, begin, tl.float32, ALIGNED)
    squares = address_of(row + HESSIAN, begin, tl.float32, ALIGNED)
    mean = buffer if HELD else p
    mean1, mean2 = get(mean, left, some), get(mean, right, others)
    average1, average2 = get(average, left, some), get(average, right, others)
    squares1, squares2 = get(squares, left, some), get(squares, right, others)
    fact = facts + t * FACTS
    there = rest * tl.load(fact + FACT_ACTIVE).to(tl.int32)
    gradient = address_of(gradients + t, begin, tl.float32, ALIGNED)
    gradient1 = tl.load(gradient + left, mask=left < there, other=0.0)
    gradient2 = tl.load(gradient + right, mask=right < there, other=0.0)
    a, b = key_of(keys, t, 0)
    noise = noise_of(row, begin, left, a, b, TRANSPOSED)
    mean1, average1, squares1, product1 = _equations(mean1, gradient1, average1, squares1, noise[0], fact)
    mean2, average2, squares2, product2 = _equations(mean2, gradient2, average2, squares2, noise[1], fact)
    products = tl.where(left < there, product1, 0.0) + tl.where(right < there, product2, 0.0)
    tl.store(sums + tl.program_id(0), tl.sum(products, axis=0))
    put(average, average1, left, some)
    put(average, average2, right, others)
    put(squares, squares1, left, some)
    put(squares, squares2, right, others)
    if AHEAD:
        put(buffer, mean1, left, some)
        put(buffer, mean2, right, others)
        c, d = key_of(keys, t, 1)
        ahead = noise_of(row, begin, left, c, d, TRANSPOSED)
        factor, delta, ess = tl.load(fact + NEXT_FACTOR), tl.load(fact + NEXT_DELTA), tl.load(fact + NEXT_ESS)
        still = tl.load(fact + STILL)
        mean1 += ahead[0] * width_of(squares1 * factor, delta_of(delta, mean1, squares1, still), ess)
        mean2 += ahead[1] * width_of(squares2 * factor, delta_of(delta, mean2, squares2, still), ess)
    put(p, mean1, left, some)
    put(p, mean2, right, others)
