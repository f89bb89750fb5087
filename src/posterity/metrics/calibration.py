"""Calibration: does a confidence of 80 % come true eight times out of ten?"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from posterity.batches import Array
from posterity.metrics._inputs import classified, count

BINS = 15


class CalibrationBins(NamedTuple):
    """Mean confidence, accuracy and share of the examples in each bin that is not empty."""

    confidence: Tensor
    accuracy: Tensor
    weight: Tensor

    @property
    def error(self) -> float:
        """Σ_b weight_b |accuracy_b − confidence_b|."""
        return (self.weight * (self.accuracy - self.confidence).abs()).sum().item()


def calibration_bins(
    probs: Array, labels: Array, *, bins: int = BINS, adaptive: bool = False, ignore_index: int | None = None
) -> CalibrationBins:
    """Confidence of the predicted class against how often it was right.

    Args:
        probs: Probabilities (..., K), or p(y = 1) shaped as the labels.
        labels: Integers (...).
        bins: Number of bins.
        adaptive: Bins with equal numbers of examples (to within one) instead of equal width. Equally confident
            examples share their accuracy: which of them falls in which bin is chance.
        ignore_index: A label whose positions do not count.

    Returns:
        One entry for each bin that holds an example. Bins of equal width are [b/B, (b+1)/B), the last one closed.
    """
    bins = count(bins, "bins")
    p, y = classified(probs, labels, ignore_index)
    confidence, guess = p.max(-1)
    right = (guess == y).double()
    if adaptive:
        _, tied, size = confidence.unique(return_inverse=True, return_counts=True)
        right = (torch.zeros(len(size), dtype=torch.float64).index_add_(0, tied, right) / size)[tied]
        position = torch.empty_like(y)
        position[confidence.argsort(stable=True)] = torch.arange(len(y))
        index = position * bins // len(y)
    else:
        edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
        index = (torch.bucketize(confidence, edges, right=True) - 1).clamp(0, bins - 1)
    held = torch.bincount(index, minlength=bins).double()
    inside = held > 0

    def mean(values: Tensor) -> Tensor:
        return (torch.zeros(bins, dtype=torch.float64).index_add_(0, index, values) / held)[inside]

    return CalibrationBins(mean(confidence), mean(right), (held / len(y))[inside])


def ece(probs: Array, labels: Array, *, bins: int = BINS, ignore_index: int | None = None) -> float:
    """Expected calibration error of the predicted class, over bins of equal width.

        ECE = Σ_b (n_b/N) |accuracy_b − confidence_b|

    The number depends on `bins` (15 by default): compare only values with the same bins.

    Examples:
        >>> round(ece(torch.tensor([[0.8, 0.2], [0.8, 0.2]]), torch.tensor([0, 1])), 4)
        0.3

    References:
        Guo et al., "On calibration of modern neural networks", 2017.
    """
    return calibration_bins(probs, labels, bins=bins, ignore_index=ignore_index).error


def adaptive_ece(probs: Array, labels: Array, *, bins: int = BINS, ignore_index: int | None = None) -> float:
    """Expected calibration error over bins that hold equal numbers of examples.

    References:
        Nguyen and O'Connor, "Posterior calibration and exploratory analysis for NLP models", 2015.
    """
    return calibration_bins(probs, labels, bins=bins, adaptive=True, ignore_index=ignore_index).error
