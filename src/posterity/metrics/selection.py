"""Selective prediction: the risk when the model abstains from the least certain examples."""

from __future__ import annotations

import torch
from torch import Tensor

from posterity.batches import Array
from posterity.errors import require
from posterity.metrics._inputs import numbers, paired


def risk_coverage(uncertainty: Array, losses: Array) -> tuple[Tensor, Tensor]:
    """Mean loss of the n most certain examples, for n = 1..N.

    Equally uncertain examples share their mean loss: the curve is the expectation over their order.

    Args:
        uncertainty: One number for each example; the most certain are kept first.
        losses: Loss of each example in the same shape (0/1 errors, NLL ...).

    Returns:
        Coverage n/N and risk, both (N,).
    """
    u = numbers(uncertainty, "uncertainty")
    loss = paired(losses, u, "losses", "the uncertainty").reshape(-1)
    order = u.reshape(-1).argsort()
    _, group, size = u.reshape(-1)[order].unique_consecutive(return_inverse=True, return_counts=True)
    shared = torch.zeros(len(size), dtype=torch.float64).index_add_(0, group, loss[order]) / size
    kept = torch.arange(1, len(loss) + 1, dtype=torch.float64)
    return kept / len(loss), shared[group].cumsum(0) / kept


def selective_risk(uncertainty: Array, losses: Array, coverage: float) -> float:
    """Mean loss of the most certain fraction `coverage` of the examples (at least one example).

    Examples:
        >>> selective_risk(torch.tensor([0.1, 0.2, 0.9, 0.8]), torch.tensor([0, 0, 1, 1]), coverage=0.5)
        0.0
    """
    require(0 < coverage <= 1, "coverage", "a fraction in (0, 1]", coverage)
    fraction, risk = risk_coverage(uncertainty, losses)
    kept = max(1, int(coverage * len(fraction) + 1e-9))
    return risk[kept - 1].item()


def aurc(uncertainty: Array, losses: Array) -> float:
    """Area under the risk-coverage curve: the selective risk averaged over the coverages 1/N, ..., 1.

    References:
        Geifman, Uziel and El-Yaniv, "Bias-reduced uncertainty estimation for deep neural classifiers", 2019.
    """
    return risk_coverage(uncertainty, losses)[1].mean().item()
