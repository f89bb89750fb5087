"""Intervals of amounts that hold what they promise: their widths follow the errors on rows not learnt from."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from posterity.learning.folds import OutOfFold
from posterity.likelihoods import GaussianLikelihood, Likelihood
from posterity.posterior import Posterior
from posterity.prediction import ConformalIntervals, Prediction, predict
from posterity.runs.preprocessing import Examples
from posterity.runs.targets import Amount, Target

LEVELS = tuple(round(level, 2) for level in np.linspace(0.05, 0.95, 19).tolist())
_ROWS = 2000  # that are enough to know the widths
_SAMPLES = 32
_SMALLEST = 1e-6  # noise, of amounts with variance 1


def with_noise(target: Target, train: Examples, found: OutOfFold | None) -> str | Likelihood:
    """What outputs mean, with the mean squared error out of fold for the noise of amounts, where it is known."""
    if found is None or not isinstance(target, Amount):
        return target.likelihood
    error = (found.outputs.cpu() - train.targets).square().mean().item()
    return GaussianLikelihood(1 / max(error, _SMALLEST))


def widths(
    model: nn.Module, posterior: Posterior, train: Examples, target: Target, found: OutOfFold | None, **about: Any
) -> list[float] | None:
    """How many times the Gaussian's the widths of intervals are, for each of the `LEVELS`; None but for amounts.

        factor(level) = quantile of |y − f₋(x)| / std(x) at the level, divided by the Gaussian's

    f₋ are predictions out of fold, and std is the run's own. Errors that are mostly small and now and then large have
    narrower intervals of 90 % than a Gaussian of the same variance.

    Args:
        model: The model of the run.
        posterior: Its posterior.
        train: The training examples.
        target: What is predicted.
        found: Predictions out of fold.
        **about: What `posterity.predict` takes.
    """
    if found is None or not isinstance(target, Amount):
        return None
    some = torch.randperm(len(train.ids), generator=torch.Generator().manual_seed(0))[:_ROWS]
    std = predict(model, posterior, train.inputs[some], _SAMPLES, **about).std.cpu().double()
    mean, y = found.outputs[some].cpu().double(), train.targets[some].double()
    factors = []
    for level in LEVELS:
        threshold = ConformalIntervals.fit(mean, std, y, alpha=1 - level).threshold
        largest = ((y - mean).abs() / std).max().item()
        factors.append(min(threshold, largest) / _gaussian(level))  # of few rows the largest error is all there is
    return factors


def bounds(p: Prediction, level: float, factors: Sequence[float] | None) -> tuple[Tensor, Tensor]:
    """Lower and upper bounds of intervals: mean ∓ factor · z · std, or quantiles of the prediction without factors."""
    if factors is None:
        low, high = p.quantiles([(1 - level) / 2, (1 + level) / 2])
        return low, high
    wide = float(np.interp(level, LEVELS, factors)) * _gaussian(level)
    return p.mean - wide * p.std, p.mean + wide * p.std


def _gaussian(level: float) -> float:
    """Half the width of a Gaussian's interval, in standard deviations."""
    return NormalDist().inv_cdf((1 + level) / 2)
