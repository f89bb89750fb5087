"""Temperature scaling: one number that makes confidences honest, and leaves every decision as it was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from posterity.batches import Array, one_tensor
from posterity.errors import InvalidInput, expected, require, require_positive
from posterity.likelihoods import CategoricalLikelihood
from posterity.prediction._prediction import Prediction

HOTTEST = 1e4  # beyond it, validation labels contradict the scores and the uniform distribution fits best
STEPS = 100


@dataclass(frozen=True)
class TemperatureScaling:
    """p(y | x) ∝ exp(score_y / temperature).

    Scores are logits or log-probabilities (they differ by a constant for each example, which cancels), so the
    predictive of a posterior can be rescaled as well as a single network.

    Args:
        temperature: Above 1 softens, below 1 sharpens.

    Examples:
        >>> scores = torch.tensor([[4.0, 0.0], [4.0, 0.0], [0.0, 4.0], [4.0, 0.0]])
        >>> scaling = TemperatureScaling.fit(scores, torch.tensor([0, 0, 1, 1]))  # right three times out of four
        >>> scaling(scores)[0]
        tensor([0.7500, 0.2500])

    References:
        Guo et al., "On calibration of modern neural networks", 2017.
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        require_positive("temperature", self.temperature)

    @classmethod
    def fit(cls, scores: Array | Prediction, labels: Array) -> Self:
        """The temperature that minimises the NLL of held-out labels.

        In a = 1/temperature the NLL Σ log Σ_k exp(a s_k) − a s_y is convex, with slope E_a[s] − s_y, which is sᵀ times
        the residual of the scores a s: bisection finds its one minimum.

        Args:
            scores: Logits or log-probabilities (..., K) of held-out examples, or their `Prediction`.
            labels: Integers (...), or probabilities (..., K).

        Returns:
            The fitted scaling.
        """
        s, law = _scores(scores).double(), CategoricalLikelihood()
        y = one_tensor(labels).to(s.device)
        law.check(s, y)
        require(len(s) > 0, "scores", "at least one example", "none")
        s = s - s.amax(-1, keepdim=True)  # the largest is 0: no overflow at any temperature
        s = s.clamp_min(torch.finfo(torch.float32).min)  # a class ruled out stays so, and 0 · ∞ does not come up

        def slope(a: float) -> float:
            return (law.residual(a * s, y) * s).sum(-1).mean().item()

        low, high = 1 / HOTTEST, HOTTEST
        if slope(high) < 0:
            raise InvalidInput("labels: expected some that the scores get wrong (no temperature is too cold), got none")
        for _ in range(STEPS):
            middle = (low * high) ** 0.5
            low, high = (middle, high) if slope(middle) < 0 else (low, middle)
        return cls(1 / (low * high) ** 0.5)

    def __call__(self, scores: Array | Prediction) -> Tensor:
        """Rescaled probabilities (..., K)."""
        return torch.softmax(_scores(scores) / self.temperature, -1)


def _scores(scores: Array | Prediction) -> Tensor:
    values = scores.log_probs if isinstance(scores, Prediction) else scores
    values = one_tensor(values) if isinstance(values, np.ndarray) else values
    if not isinstance(values, Tensor) or values.ndim < 2:
        raise expected("scores", "logits or log-probabilities (..., K), or a Prediction of classes", scores)
    require(not bool(values.isnan().any()), "scores", "numbers", "NaN")
    return values
