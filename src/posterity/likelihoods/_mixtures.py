"""Quantiles of the mixture of distributions that draws predict, by bisection."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

STEPS = 64  # halvings of the bracket: past the precision of float64


def between(cdf: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, q: Tensor) -> Tensor:
    """The y with cdf(y) = q, somewhere from `low` to `high`."""
    low, high = _bisect(cdf, low, high, q)
    return 0.5 * (low + high)


def smallest(cdf: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, q: Tensor) -> Tensor:
    """The smallest whole number y >= 0 with P(Y ≤ y) ≥ q, for a cdf that is continuous between whole numbers."""
    low, _ = _bisect(cdf, low, high, q)
    return low.ceil().clamp_min(0.0) + 0.0  # not −0


def _bisect(cdf: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    for _ in range(STEPS):
        middle = 0.5 * (low + high)
        beyond = cdf(middle) >= q
        low, high = torch.where(beyond, low, middle), torch.where(beyond, middle, high)
    return low, high
