"""TIES: trim small changes, elect a sign for every weight, average the changes that agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from posterity.errors import expected, require
from posterity.merging._method import Chunk, Chunks, Method, Scope, weighted_sum

Convention = Literal["paper", "mergekit", "mergekit_sum", "peft"]
_NOTHING = 1e-8  # sums of weights below which nobody agrees


@dataclass(frozen=True)
class Ties(Method):
    """θ = θ₀ + Σ_{t ∈ A} α_t Δ̂_t / d,  A = {t : sgn Δ̂_t = γ},  Δ̂_t the largest changes of task t, γ the elected sign.

    The libraries differ, and so do their results:

    | convention | Δ̂_t keeps the largest of | γ = sgn of | where γ = 0 | d |
    |---|---|---|---|---|
    | "paper" | the whole model | Σ Δ̂_t | no change | number of t in A |
    | "peft" | each tensor | Σ Δ̂_t | positive | number of t in A |
    | "mergekit" | each tensor | Σ α_t Δ̂_t | positive | Σ_{t ∈ A} α_t |
    | "mergekit_sum" (its `normalize: false`) | each tensor | Σ α_t Δ̂_t | positive | 1 |

    Changes as large as the smallest that is kept are kept too, so the result does not depend on the order of weights.

    Args:
        density: Fraction of the changes to keep; or one for each model, in their order.
        convention: Whose definition to follow.

    References:
        Yadav, Tam, Choshen, Raffel and Bansal, "TIES-merging: resolving interference when merging models", 2023.
    """

    density: float | Sequence[float] = 0.2
    convention: Convention = "paper"
    name = "ties"

    def __post_init__(self) -> None:
        check_density(self.density)
        check_convention(self.convention)

    def check(self, weights: Sequence[float]) -> None:
        super().check(weights)
        densities(self.density, len(weights))

    @property
    def scope(self) -> Scope:
        return "model" if self.convention == "paper" else "tensor"

    def measure(self, chunks: Chunks) -> list[float]:
        """The smallest magnitude that each model keeps."""
        return thresholds(chunks, self.density, least=1 if self.convention.startswith("mergekit") else 0)

    def combine(self, chunk: Chunk, measured: Any) -> Tensor:
        trimmed = [trim(delta, threshold) for delta, threshold in zip(chunk.deltas, measured, strict=True)]
        return elect_and_average(trimmed, chunk.weights, self.convention).add_(chunk.anchor)


def check_density(density: float | Sequence[float]) -> None:
    """Refuse what is no fraction, nor fractions."""
    for one in density if isinstance(density, Sequence) and not isinstance(density, str) else (density,):
        fine = isinstance(one, Real) and 0 < one <= 1
        require(fine, "density", "a fraction above 0, at most 1", one)


def densities(density: float | Sequence[float], models: int) -> list[float]:
    """A fraction for each model."""
    if not isinstance(density, Sequence):
        return [float(density)] * models
    require(len(density) == models, "density", f"one fraction, or one for each of {models} models", len(density))
    return list(density)


def check_convention(convention: str) -> None:
    """Refuse a convention that does not exist."""
    if convention not in get_args(Convention):
        raise expected("convention", "'paper', 'mergekit', 'mergekit_sum' or 'peft'", convention)


def elect_and_average(deltas: Sequence[Tensor], weights: Sequence[float], convention: Convention) -> Tensor:
    """Σ_{t ∈ A} α_t Δ_t / d, where A are the tasks that agree with the elected sign."""
    shares = weights if convention.startswith("mergekit") else [1.0] * len(deltas)
    total = weighted_sum(shares, deltas)
    # Signs and memberships are numbers, not booleans: arithmetic on one type is several times faster.
    elected = total.sign_() if convention == "paper" else torch.copysign(torch.ones_like(total), total)
    merged, divisor = torch.zeros_like(elected), torch.zeros_like(elected)
    for delta, weight, share in zip(deltas, weights, shares, strict=True):
        vote = delta.sign()
        agrees = (vote if share > 0 else -vote if share < 0 else vote * 0).mul_(elected).clamp_(min=0)
        merged.addcmul_(delta, agrees, value=weight)
        divisor.add_(agrees, alpha=share)
    if convention == "mergekit_sum":
        return merged
    if min(shares) > _NOTHING:
        return merged.div_(divisor.clamp_(min=min(shares)))  # where nobody agrees, 0 is divided
    return merged.div_(divisor.masked_fill_(divisor.abs() < _NOTHING, 1))


def trim(delta: Tensor, threshold: float) -> Tensor:
    """The changes that are not smaller than the threshold, zeros elsewhere."""
    if delta.dtype != torch.float32:
        return delta.masked_fill(delta.abs().float() < threshold, 0)
    below = float(np.nextafter(np.float32(threshold), np.float32(-np.inf)))
    return torch.nn.functional.hardshrink(delta, below) if below >= 0 else delta


def thresholds(chunks: Chunks, density: float | Sequence[float], least: int) -> list[float]:
    """The max(⌊density · n⌋, least)-th largest |Δ| of each model, exactly, from counts of float32 bit patterns.

    Non-negative floats are ordered as their bits are. One pass counts the upper 16 bits, a second the lower 16 bits of
    those that share the upper half of the answer; nothing is ever sorted or kept.
    """
    if not isinstance(density, Sequence) and density == 1:
        return [0.0] * len(next(chunks()).models)
    upper = _histograms(chunks, None)
    kept = densities(density, len(upper))
    found = [_locate(n, max(int(d * int(n.sum())), least)) for n, d in zip(upper, kept, strict=True)]
    lower = _histograms(chunks, [high for high, _ in found])
    answers = []
    for counts, (high, remaining) in zip(lower, found, strict=True):
        bits = (high << 16) + _locate(counts, remaining)[0]
        answers.append(float(np.uint32(bits).view(np.float32)) if remaining > 0 else float("inf"))
    return answers


def _histograms(chunks: Chunks, within: Sequence[int] | None) -> list[NDArray[np.int64]]:
    """For each model, how often each upper half occurs, or each lower half beside the upper half `within`."""
    totals: list[NDArray[np.int64]] = []
    for chunk in chunks():
        totals = totals or [np.zeros(1 << 16, dtype=np.int64) for _ in chunk.models]
        for i, delta in enumerate(chunk.deltas):
            bits = delta.float().abs_().reshape(-1).cpu().numpy()
            low, high = bits.view("<u2").reshape(-1, 2).T
            halves = high if within is None else low[high == within[i]]
            totals[i] += np.bincount(halves, minlength=1 << 16)
    return totals


def _locate(counts: NDArray[np.int64], k: int) -> tuple[int, int]:
    """The bin of the k-th largest, and how many of that bin are among the k largest."""
    if k <= 0:
        return 0, 0
    from_top = counts[::-1].cumsum()
    place = int(np.searchsorted(from_top, k))
    return len(counts) - 1 - place, k - int(from_top[place] - counts[::-1][place])
