"""Intervals of amounts that hold what they promise: their widths follow the errors on rows not learnt from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from posterity.learning.folds import OutOfFold, at_random
from posterity.likelihoods import GaussianLikelihood, Likelihood
from posterity.posterior import Posterior
from posterity.prediction import ConformalIntervals, Prediction, predict
from posterity.runs.preprocessing import Examples
from posterity.runs.targets import Amount, Target
from posterity.trees import evaluating

LEVELS = tuple(round(level, 2) for level in np.linspace(0.05, 0.95, 19).tolist())
_ROWS = 2000  # that are enough to know the widths
_SAMPLES = 32


def with_noise(target: Target, train: Examples, found: OutOfFold | None) -> str | Likelihood:
    """What outputs mean, with the mean squared error out of fold for the noise of amounts, where it is known."""
    if found is None or not isinstance(target, Amount):
        return target.likelihood
    return GaussianLikelihood(found.noise_precision(train.targets))


def widths(
    model: nn.Module, posterior: Posterior, train: Examples, target: Target, found: OutOfFold | None, **about: Any
) -> list[float] | None:
    """How many times the Gaussian's the widths of intervals are, for each of the `LEVELS`; None but for amounts.

        factor(level) = shrink · quantile of |y − f₋(x)| / std(x) at the level, divided by the Gaussian's

    f₋ are predictions out of fold, std is the run's own, and `shrunk` finds shrink. Errors that are mostly small and
    now and then large have narrower intervals of 90 % than a Gaussian of the same variance.

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
        factors.append(
            found.shrink * min(threshold, largest) / _gaussian(level)
        )  # of few rows the largest error is all there is
    return factors


def shrunk(found: OutOfFold, train: Examples, folds: int, seed: int, fit: Callable[[Examples], nn.Module]) -> OutOfFold:
    """The folds with the ratio of the final training's errors to theirs.

        shrink = Σ |y − f(x)| / Σ |y − f₋(x)|   over the rows of the first fold, which neither has learnt from

    Folds learn by AdamW at a constant rate; the final training has noise in its weights and a falling rate, and its
    errors are up to a quarter smaller where the targets have little noise. Intervals as wide as the errors of the folds
    would hold more than they promise.

    Args:
        found: What the folds have found.
        train: The training examples.
        folds: Number of folds.
        seed: Their seed.
        fit: The final training on some of the examples; returns its model.
    """
    unseen = at_random(len(train.ids), folds, torch.Generator().manual_seed(seed)) == 0
    model = fit(Examples(*(part[~unseen] for part in train)))
    with torch.no_grad(), evaluating(model):
        own = model(train.inputs[unseen].to(next(model.parameters()).device)).cpu()
    theirs, y = found.outputs[unseen].cpu(), train.targets[unseen]
    ratio = (y - own).abs().sum() / (y - theirs).abs().sum().clamp_min(1e-12)
    return replace(found, shrink=min(1.0, ratio.item()))  # of few rows it may be larger by chance


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
