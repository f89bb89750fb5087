"""Scores of single examples: how much one label would teach, however that is measured. Larger is better."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from posterity.errors import Undefined
from posterity.exploration import information, leave_one_out
from posterity.exploration.question import PoolQuestion
from posterity.noise import seeded

Score = Callable[[PoolQuestion], Tensor]


def entropy(question: PoolQuestion) -> Tensor:
    """H(y): the total uncertainty of the prediction, noise included."""
    return _total(question.prediction.entropy)


def margin(question: PoolQuestion) -> Tensor:
    """1 − (p₁ − p₂): how close the two likeliest classes are."""
    log_probs = question.prediction.log_probs
    if log_probs is None:
        raise Undefined(f"margin: expected classes, got a {question.prediction.likelihood.name} likelihood")
    first, second = log_probs.exp().topk(2, dim=-1).values.unbind(-1)
    return _total(1 - (first - second))


def bald(question: PoolQuestion) -> Tensor:
    """I(y; θ) = H(y) − E[H(y | θ)]: the information of the label about the weights.

    References:
        Houlsby, Huszár, Ghahramani and Lengyel, "Bayesian active learning for classification and preference
        learning", 2011.
    """
    return _total(question.prediction.mutual_information)


def random(question: PoolQuestion) -> Tensor:
    """Random scores, as a baseline."""
    return torch.rand(question.trained.data.n, generator=seeded(question.seed), dtype=torch.float32).double()


def _total(scores: Tensor) -> Tensor:
    """One number for each example: the sum over its targets, where it has many (pixels, tokens, outputs)."""
    return scores.cpu().double().flatten(1).sum(1) if scores.ndim > 1 else scores.cpu().double()


SCORES: dict[str, Score] = {
    "entropy": entropy,
    "margin": margin,
    "bald": bald,
    "bald_linearised": information.score,
    "leave_one_out": leave_one_out.score,
    "random": random,
}
