"""A row of Table 1: the posterior it starts from and the rule that moves it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from posterity.families import Categorical, DiagonalGaussian, FixedGaussian, Gaussian, MixtureOfGaussians
from posterity.families.checks import parameters
from posterity.gradients import AnyFamily, AnyLoss
from posterity.rule import BayesianLearningRule

Q = TypeVar("Q", bound=AnyFamily)


@dataclass(frozen=True)
class Algorithm(Generic[Q]):
    """A family and a rule: what an algorithm is, once its approximations have names.

    Args:
        start: The posterior to begin with, as a function of the initial parameters.
        rule: The rule with its estimator and options.

    Examples:
        >>> from posterity.algorithms import newton
        >>> q = newton().run(torch.zeros(2).double(), lambda theta: 2.0 * ((theta - 3.0) ** 2).sum(), steps=1)
        >>> q.mean
        tensor([3., 3.], dtype=torch.float64)
    """

    start: Callable[[Tensor], Q]
    rule: BayesianLearningRule

    def run(self, theta: Tensor, loss: AnyLoss | Iterable[AnyLoss], steps: int, **options: Any) -> Q:
        """Run the rule from θ; options are those of `BayesianLearningRule.run`."""
        (theta,) = parameters({"θ": (theta, 1)})
        return self.rule.run(self.start(theta), loss, steps, **options)

    def but(self, **changes: Any) -> Algorithm[Q]:
        """The same algorithm with other options of the rule: how one row is made from another."""
        return replace(self, rule=replace(self.rule, **changes))


def unit(theta: Tensor) -> Gaussian:
    """N(θ, I), full."""
    return Gaussian(theta, torch.eye(theta.shape[-1], dtype=theta.dtype, device=theta.device))


def fixed(theta: Tensor) -> FixedGaussian:
    """N(θ, I) with the covariance fixed."""
    return FixedGaussian(theta, torch.eye(theta.shape[-1], dtype=theta.dtype, device=theta.device))


def vague(theta: Tensor) -> DiagonalGaussian:
    """N(θ, ∞), diagonal: the precision is as good as zero, which is where RMSprop and Adam begin."""
    return DiagonalGaussian(theta, torch.full_like(theta, torch.finfo(theta.dtype).tiny))


def mixture(means: Tensor) -> MixtureOfGaussians:
    """Components N(mean, I) of equal weight, one for each of the means (K, d)."""
    units = torch.eye(means.shape[-1], dtype=means.dtype, device=means.device).expand(len(means), -1, -1)
    return MixtureOfGaussians(Categorical(means.new_zeros(len(means) - 1)), Gaussian(means, units))


def diagonal(precision: float) -> Callable[[Tensor], DiagonalGaussian]:
    """θ ↦ N(θ, 1/precision), diagonal."""
    return lambda theta: DiagonalGaussian(theta, torch.full_like(theta, precision))
