"""Small data sets of the comparisons, the same every time, in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from posterity.errors import require
from posterity.gradients import LinearLoss

N = 40  # examples, unless a comparison asks for fewer


def normal(*shape: int, seed: int) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def classification(n: int = N, d: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs (n, d) and noisy labels in {0, 1}: no line separates them."""
    X = normal(n, d, seed=seed)
    chance = torch.rand(n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 1))
    return X, (chance < torch.sigmoid(X @ torch.linspace(-1.0, 1.5, d, dtype=torch.float64))).double()


def counts(n: int = N, d: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs (n, d) and counts with log-linear rates."""
    X = 0.5 * normal(n, d, seed=seed)
    rates = (X @ torch.linspace(-1.0, 1.0, d, dtype=torch.float64)).exp()
    return X, torch.poisson(rates, generator=torch.Generator().manual_seed(seed + 1))


def logistic_loss(strength: float = 1.0) -> LinearLoss:
    """The loss of a logistic regression with the regulariser ½·strength·|θ|²."""
    X, y = classification()
    return LinearLoss(
        inputs=X, targets=y, likelihood="bernoulli", regulariser=lambda theta: 0.5 * strength * theta @ theta
    )


def furthest(*pairs: tuple[object, object]) -> float:
    """The largest absolute difference between the entries of two arrays of one shape, over all pairs; NaN if any is.

    Examples:
        >>> furthest((0.0, 0.0), ([1.0, 2.0], [1.0, float("nan")]), (3.0, 1.0))
        nan
    """
    found = []
    for pair in pairs:
        a, b = (torch.as_tensor(one, dtype=torch.float64) for one in pair)
        require(a.shape == b.shape, "comparison", f"the shape {tuple(b.shape)} of the reference", tuple(a.shape))
        found.append((a - b).abs().max())
    return torch.stack(found).max().item()  # Python's own max would pass over NaN
