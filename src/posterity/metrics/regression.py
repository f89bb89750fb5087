"""Scores of real-valued predictions: error, log-likelihood, CRPS, coverage of intervals."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posterity.batches import Array
from posterity.errors import require
from posterity.metrics._inputs import numbers, paired


def rmse(mean: Array, targets: Array) -> float:
    """Root of the mean squared error over all entries."""
    y = numbers(targets, "targets")
    return ((paired(mean, y, "mean", "the targets") - y) ** 2).mean().sqrt().item()


def gaussian_nll(mean: Array, std: Array, targets: Array) -> float:
    """Negative log density of N(mean, std²) at the targets, all constants included, averaged over all entries.

    Args:
        mean: Predicted means.
        std: Predicted standard deviations, noise included, in the same shape.
        targets: What was observed, in the same shape.

    Returns:
        The mean in nats.

    Examples:
        >>> round(gaussian_nll(torch.zeros(1), torch.ones(1), torch.zeros(1)), 4)
        0.9189
    """
    z, sigma = _standardised(mean, std, targets)
    return (0.5 * z**2 + sigma.log() + 0.5 * math.log(2 * math.pi)).mean().item()


def crps_gaussian(mean: Array, std: Array, targets: Array) -> float:
    """Continuous ranked probability score ∫ (F(t) − [t ≥ y])² dt of Gaussian predictions, averaged over all entries.

        CRPS = σ [ z (2Φ(z) − 1) + 2φ(z) − 1/√π ],   z = (y − mean)/σ

    References:
        Gneiting and Raftery, "Strictly proper scoring rules, prediction, and estimation", 2007.
    """
    z, sigma = _standardised(mean, std, targets)
    density = (-0.5 * z**2).exp() / math.sqrt(2 * math.pi)
    score = z * torch.erf(z / math.sqrt(2)) + 2 * density - 1 / math.sqrt(math.pi)
    return (sigma * score).mean().item()


def crps_samples(samples: Array, targets: Array) -> float:
    """CRPS of the empirical distribution of draws, averaged over all entries.

        CRPS = E|X − y| − ½ E|X − X'|,   X, X' independent among the draws

    Args:
        samples: Draws of the target, noise included, (draws, ...).
        targets: What was observed, (...).

    Returns:
        The mean score, in the unit of the targets.
    """
    y, x = numbers(targets, "targets"), numbers(samples, "samples")
    wanted = f"shape (draws, {', '.join(map(str, y.shape))})"
    require(x.ndim == y.ndim + 1 and x.shape[1:] == y.shape, "samples", wanted, tuple(x.shape))
    m = len(x)
    # Sorted, Σ_ij |x_i − x_j| = 2 Σ_i (2i − m − 1) x_(i): no table of all pairs.
    rank_weight = (2 * torch.arange(1, m + 1, dtype=torch.float64) - m - 1) / m**2
    error = x - y  # numbers far from zero would lose the digits of their differences
    spread = torch.tensordot(rank_weight, error.sort(0).values, dims=1)
    return (error.abs().mean(0) - spread).mean().item()


def coverage(lower: Array, upper: Array, targets: Array) -> float:
    """Fraction of targets inside [lower, upper]; a bound may be infinite.

    Examples:
        >>> coverage(torch.zeros(4), torch.ones(4), torch.tensor([0.2, 0.5, 0.9, 1.5]))
        0.75
    """
    y = numbers(targets, "targets")
    low = paired(lower, y, "lower", "the targets", infinite=True)
    high = paired(upper, y, "upper", "the targets", infinite=True)
    require(bool((low <= high).all()), "lower", "bounds not above `upper`", f"{int((low > high).sum())} above")
    return ((low <= y) & (y <= high)).double().mean().item()


def _standardised(mean: Array, std: Array, targets: Array) -> tuple[Tensor, Tensor]:
    """z = (y − mean)/σ, and σ."""
    y = numbers(targets, "targets")
    mu, sigma = paired(mean, y, "mean", "the targets"), paired(std, y, "std", "the targets")
    require(bool((sigma > 0).all()), "std", "positive numbers", f"a smallest value of {sigma.min().item():g}")
    return (y - mu) / sigma, sigma
