"""Scores of class probabilities: accuracy, log-likelihood, Brier, intersection over union."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from posterity.batches import Array
from posterity.errors import require
from posterity.metrics._inputs import classified, count, in_range, whole


def accuracy(probs: Array, labels: Array, *, ignore_index: int | None = None) -> float:
    """Fraction of examples whose most probable class is the label.

    Args:
        probs: Probabilities (..., K), or p(y = 1) shaped as the labels.
        labels: Integers (...).
        ignore_index: A label whose positions do not count (void pixels, padding).

    Returns:
        A number in [0, 1].

    Examples:
        >>> accuracy(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([0, 0]))
        0.5
    """
    return top_k_accuracy(probs, labels, k=1, ignore_index=ignore_index)


def top_k_accuracy(probs: Array, labels: Array, *, k: int = 5, ignore_index: int | None = None) -> float:
    """Fraction of examples whose label is among the k most probable classes (of equal ones, the lower index wins)."""
    p, y = classified(probs, labels, ignore_index)
    require(count(k, "k") <= p.shape[-1], "k", f"a number in 1..{p.shape[-1]}", k)
    own = p.gather(-1, y.unsqueeze(-1))
    tied_before = (p == own) & (torch.arange(p.shape[-1]) < y.unsqueeze(-1))
    rank = ((p > own) | tied_before).sum(-1)
    return (rank < k).double().mean().item()


def balanced_accuracy(probs: Array, labels: Array, *, ignore_index: int | None = None) -> float:
    """Mean over the classes that occur of the fraction of their examples that are classified right.

    A class counts as much as another however few examples it has: always the largest class makes 1/K.

    Args:
        probs: Probabilities (..., K), or p(y = 1) shaped as the labels.
        labels: Integers (...).
        ignore_index: A label whose positions do not count.

    Returns:
        A number in [0, 1].

    Examples:
        >>> balanced_accuracy(torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]]), torch.tensor([0, 0, 1]))
        0.5
    """
    p, y = classified(probs, labels, ignore_index)
    right, y = (p.argmax(-1) == y).double().flatten(), y.flatten()
    counts = y.bincount(minlength=p.shape[-1])
    return (y.bincount(right, minlength=p.shape[-1]) / counts)[counts > 0].mean().item()


def nll(probs: Array, labels: Array, *, ignore_index: int | None = None) -> float:
    """Mean negative log-likelihood −log p_y in nats; infinite where a label had probability zero.

    Args:
        probs: Probabilities (..., K), or p(y = 1) shaped as the labels.
        labels: Integers (...).
        ignore_index: A label whose positions do not count.

    Returns:
        The mean over examples.

    Examples:
        >>> round(nll(torch.tensor([[0.5, 0.5]]), torch.tensor([1])), 4)
        0.6931
    """
    p, y = classified(probs, labels, ignore_index)
    return -p.gather(-1, y.unsqueeze(-1)).log().mean().item()


def brier(probs: Array, labels: Array, *, ignore_index: int | None = None) -> float:
    """Brier score Σ_k (p_k − [y = k])², summed over classes, averaged over examples; between 0 and 2."""
    p, y = classified(probs, labels, ignore_index)
    return ((p - F.one_hot(y, p.shape[-1])) ** 2).sum(-1).mean().item()


def mean_iou(predictions: Array, labels: Array, *, classes: int, ignore_index: int | None = None) -> float:
    """Intersection over union of predicted and true positions, averaged over classes.

    Counts are pooled over all images; a class that occurs neither in predictions nor in labels is left out.

    Args:
        predictions: Predicted classes, integers of any shape (`p.probs.argmax(-1)`).
        labels: True classes in the same shape.
        classes: Number of classes K.
        ignore_index: A label whose positions do not count.

    Returns:
        A number in [0, 1].
    """
    guess, y = whole(predictions, "predictions"), whole(labels, "labels")
    require(guess.shape == y.shape, "predictions", f"shape {tuple(y.shape)} like the labels", tuple(guess.shape))
    if ignore_index is not None:
        guess, y = guess[y != ignore_index], y[y != ignore_index]
        require(len(y) > 0, "labels", f"some label other than {ignore_index}", "none")
    classes = count(classes, "classes")
    in_range(guess, classes, "predictions")
    in_range(y, classes)
    pairs = torch.bincount(y.reshape(-1) * classes + guess.reshape(-1), minlength=classes**2)
    confusion = pairs.reshape(classes, classes).double()  # rows: labels, columns: predictions
    both = confusion.diagonal()
    either = confusion.sum(0) + confusion.sum(1) - both
    return (both / either)[either > 0].mean().item()
