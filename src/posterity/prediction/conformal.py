"""Conformal prediction: sets and intervals that contain the truth with a chosen probability, for any model.

If calibration and test examples are exchangeable, P(y ∈ set(x)) ≥ 1 − α; the probability is over both. A score measures
how badly a label fits a prediction, and a label is in the set if its score is not above the calibration scores'

    threshold = the ⌈(n + 1)(1 − α)⌉-th smallest of n calibration scores   (infinite if n is too small for α).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor

from posterity.batches import Array, one_tensor
from posterity.errors import expected, require
from posterity.likelihoods import CategoricalLikelihood

Score = Literal["lac", "aps"]


@dataclass(frozen=True)
class ConformalSets:
    """Sets of classes that hold the true class with probability at least 1 − alpha.

    Scores: "lac" is 1 − p_y, which gives the smallest sets on average (they may be empty); "aps" is the total
    probability of the classes more probable than y, which adapts to the difficulty of each example and always
    contains the most probable class.

    Attributes:
        threshold: Largest score that is still in the set.
        score: "lac" or "aps".

    References:
        Sadinle, Lei and Wasserman, "Least ambiguous set-valued classifiers with bounded error levels", 2019 (lac).
        Romano, Sesia and Candès, "Classification with valid and adaptive coverage", 2020 (aps).
    """

    threshold: float
    score: Score = "lac"

    @classmethod
    def fit(cls, probs: Array, labels: Array, *, alpha: float = 0.1, score: Score = "lac") -> Self:
        """The sets calibrated on held-out examples.

        Args:
            probs: Probabilities (N, K) of held-out examples.
            labels: Their classes, integers (N,).
            alpha: How often the truth may be missed.
            score: "lac" or "aps".

        Returns:
            The fitted sets.

        Examples:
            >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]])
            >>> sets = ConformalSets.fit(probs, torch.tensor([0, 0, 1, 1]), alpha=0.2)
            >>> sets(torch.tensor([[0.95, 0.05], [0.5, 0.5]]))
            tensor([[ True, False],
                    [ True,  True]])
        """
        probs, labels = one_tensor(probs), one_tensor(labels)
        require(not labels.is_floating_point(), "labels", "integers (N,)", f"{labels.dtype} {tuple(labels.shape)}")
        CategoricalLikelihood().check(probs, labels)
        own = _scores(probs, score).gather(-1, labels.to(probs.device).long().unsqueeze(-1))
        return cls(_threshold(own, alpha), score)

    def __call__(self, probs: Array) -> Tensor:
        """Which classes are in the set of each example, booleans (N, K)."""
        return _scores(one_tensor(probs), self.score) <= self.threshold


@dataclass(frozen=True)
class ConformalIntervals:
    """Intervals mean ± threshold · std that hold a real target with probability at least 1 − alpha.

    Attributes:
        threshold: Largest |y − mean| / std that is still inside.
    """

    threshold: float

    @classmethod
    def fit(cls, mean: Array, std: Array, targets: Array, *, alpha: float = 0.1) -> Self:
        """The intervals calibrated on held-out examples.

        Args:
            mean: Predicted means of held-out examples.
            std: Predicted standard deviations, positive, in the same shape.
            targets: What was observed, in the same shape.
            alpha: How often the truth may be missed.

        Returns:
            The fitted intervals.
        """
        mean, std = _checked(mean, std)
        targets = one_tensor(targets).to(mean.device)
        require(
            targets.shape == mean.shape, "targets", f"shape {tuple(mean.shape)} like the mean", tuple(targets.shape)
        )
        return cls(_threshold((targets - mean).abs() / std, alpha))

    def __call__(self, mean: Array, std: Array) -> tuple[Tensor, Tensor]:
        """Lower and upper bounds."""
        mean, std = _checked(mean, std)
        return mean - self.threshold * std, mean + self.threshold * std


def _threshold(scores: Tensor, alpha: float) -> float:
    require(0 < alpha < 1, "alpha", "a probability strictly between 0 and 1", alpha)
    require(scores.numel() > 0, "calibration data", "at least one example", "none")
    require(not bool(scores.isnan().any()), "calibration scores", "numbers", "NaN")
    ordered = scores.reshape(-1).double().sort().values
    rank = math.ceil((len(ordered) + 1) * (1 - alpha) - 1e-9)  # 1 − 0.9 is not quite 0.1
    return ordered[rank - 1].item() if rank <= len(ordered) else math.inf


def _scores(probs: Tensor, score: Score) -> Tensor:
    require(probs.ndim == 2 and probs.shape[-1] > 1, "probs", "shape (N, K)", tuple(probs.shape))
    p = probs.double()
    if score == "lac":
        return 1 - p
    if score == "aps":
        ordered, order = p.sort(-1, descending=True)
        before = ordered.cumsum(-1) - ordered
        return torch.empty_like(p).scatter_(-1, order, before)
    raise expected("score", "'lac' or 'aps'", score)


def _checked(mean: Array, std: Array) -> tuple[Tensor, Tensor]:
    mean, std = one_tensor(mean), one_tensor(std)
    require(std.shape == mean.shape, "std", f"shape {tuple(mean.shape)} like the mean", tuple(std.shape))
    require(bool((std > 0).all()), "std", "positive numbers", f"a smallest value of {std.min().item():g}")
    return mean, std
