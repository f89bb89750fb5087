"""Quantiles: over draws, and of the mixture of distributions that the draws predict."""

from __future__ import annotations

import torch
from torch import Tensor

STEPS = 64  # halvings of the bracket: past the precision of float64


def empirical_quantile(draws: Tensor, levels: Tensor) -> Tensor:
    """Quantiles (Q, ...) over the first axis, linear between order statistics, of tensors of any size."""
    ordered = draws.sort(0).values
    position = levels * (len(draws) - 1)
    below = position.floor().long().clamp(max=len(draws) - 1)
    above = (below + 1).clamp(max=len(draws) - 1)
    weight = (position - below).reshape(-1, *[1] * (draws.ndim - 1))
    return torch.lerp(ordered[below], ordered[above], weight.to(ordered.dtype))
