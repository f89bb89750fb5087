"""Detection by a score: does uncertainty find foreign inputs and wrong predictions?

What is searched for is positive: the foreign input, the wrong prediction. Higher scores mean more uncertain.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posterity.batches import Array
from posterity.errors import require
from posterity.metrics._inputs import classified, flags, numbers, paired, whole


def auroc(scores: Array, positive: Array) -> float:
    """Area under the ROC curve: the chance that a positive outranks a negative, ties counting one half.

    Args:
        scores: One score for each example; higher should mean positive.
        positive: Booleans (or 0/1) in the same shape.

    Returns:
        A number in [0, 1].

    Examples:
        >>> auroc(torch.tensor([0.1, 0.4, 0.3, 0.9]), torch.tensor([0, 0, 1, 1]))
        0.75
    """
    fpr, tpr = _roc(scores, positive)
    return torch.trapezoid(tpr, fpr).item()


def fpr95(scores: Array, positive: Array) -> float:
    """Fraction of negatives flagged at the first threshold that flags at least 95 % of the positives."""
    fpr, tpr = _roc(scores, positive)
    return fpr[tpr >= 0.95].min().item()


def ood_auroc(inside: Array, outside: Array) -> float:
    """AUROC of detecting inputs outside the training distribution by uncertainty (entropy, for example).

    Examples:
        >>> ood_auroc(torch.tensor([0.1, 0.2]), torch.tensor([0.3, 0.15]))
        0.75
    """
    return auroc(*_joined(inside, outside))


def ood_fpr95(inside: Array, outside: Array) -> float:
    """Fraction of in-distribution inputs flagged when 95 % of the foreign ones are."""
    return fpr95(*_joined(inside, outside))


def error_auroc(probs: Array, labels: Array, uncertainty: Array | None = None) -> float:
    """AUROC of finding wrong predictions by an uncertainty for each example (1 − max p unless given)."""
    return auroc(*_errors(probs, labels, uncertainty))


def error_fpr95(probs: Array, labels: Array, uncertainty: Array | None = None) -> float:
    """Fraction of right predictions flagged when 95 % of the wrong ones are."""
    return fpr95(*_errors(probs, labels, uncertainty))


def _roc(scores: Array, positive: Array) -> tuple[Tensor, Tensor]:
    """False and true positive rates at every distinct threshold, from (0, 0) to (1, 1)."""
    values = numbers(scores, "scores")
    truth = flags(positive, values, "positive", "the scores").reshape(-1)
    values, order = values.reshape(-1).sort(descending=True)
    truth = truth[order]
    last_of_ties = torch.cat((values[1:] != values[:-1], torch.tensor([True])))
    true = truth.cumsum(0)[last_of_ties].double()
    false = (~truth).cumsum(0)[last_of_ties].double()
    start = torch.zeros(1, dtype=torch.float64)
    return torch.cat((start, false / false[-1])), torch.cat((start, true / true[-1]))


def _joined(inside: Array, outside: Array) -> tuple[Tensor, Tensor]:
    known, foreign = numbers(inside, "inside").reshape(-1), numbers(outside, "outside").reshape(-1)
    return torch.cat((known, foreign)), torch.cat((torch.zeros_like(known), torch.ones_like(foreign)))


def _errors(probs: Array, labels: Array, uncertainty: Array | None) -> tuple[Tensor, Tensor]:
    p, y = classified(probs, labels)
    confidence, guess = p.max(-1)
    wrong = guess != y
    mistakes = int(wrong.sum())
    require(0 < mistakes < len(y), "predictions", "right and wrong ones", f"{mistakes} wrong of {len(y)}")
    if uncertainty is None:
        return 1 - confidence, wrong
    score = paired(uncertainty, whole(labels, "labels"), "uncertainty", "the labels")
    return score.reshape(-1), wrong
