"""Vectors of independent bits: 0/1 and ±1."""

from __future__ import annotations

import itertools
from typing import Any, Self

import torch
from torch import Tensor

from posterity.errors import require
from posterity.families._base import CoordinateFamily, Coordinates
from posterity.families.checks import between, parameters

_MOST_BITS = 20  # a million states


def _all_words(letters: tuple[float, float], like: Tensor) -> Tensor:
    bits = like.shape[-1]
    require(bits <= _MOST_BITS, "bits", f"at most {_MOST_BITS}, to visit all states", bits)
    words = list(itertools.product(letters, repeat=bits))
    return torch.tensor(words, dtype=like.dtype, device=like.device)


class Bernoulli(CoordinateFamily):
    """d independent bits θ ∈ {0, 1}ᵈ with P(θⱼ = 1) = pⱼ.

        T = θ,  λ = log p/(1−p),  μ = p,  A = Σ log(1 + e^λ)

    Args:
        log_odds: λ (..., d); large values are fine, their probabilities just saturate.

    Examples:
        >>> Bernoulli.from_expectation((torch.tensor([0.5, 0.75]),)).natural[0]
        tensor([0.0000, 1.0986])
    """

    event_dims = (1,)
    theta_dims = 1

    def __init__(self, log_odds: Any) -> None:
        (self._log_odds,) = parameters({"log_odds": (log_odds, 1)})

    @property
    def natural(self) -> Coordinates:
        return (self._log_odds,)

    @property
    def expectation(self) -> Coordinates:
        return (self.mean,)

    @classmethod
    def from_natural(cls, natural: Coordinates) -> Self:
        return cls(*cls._blocks("natural", natural))

    @classmethod
    def from_expectation(cls, expectation: Coordinates, start: Self | None = None) -> Self:
        (p,) = cls._blocks("expectation", expectation)
        between("expectation[0]", p, 0.0, 1.0)
        return cls(torch.logit(p))

    def log_partition(self) -> Tensor:
        return torch.logaddexp(self._log_odds, torch.zeros_like(self._log_odds)).sum(-1)

    def statistics(self, theta: Tensor) -> Coordinates:
        return (theta,)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        return torch.bernoulli(self.mean.expand(n, *self._log_odds.shape), generator=generator)

    @property
    def mean(self) -> Tensor:
        return self._log_odds.sigmoid()

    @property
    def variance(self) -> Tensor:
        return self._log_odds.sigmoid() * (-self._log_odds).sigmoid()

    def support(self) -> Tensor:
        return _all_words((0.0, 1.0), self._log_odds)

    def to_torch(self) -> torch.distributions.Distribution:
        return torch.distributions.Independent(torch.distributions.Bernoulli(logits=self._log_odds), 1)


class SignBernoulli(CoordinateFamily):
    """d independent signs θ ∈ {−1, 1}ᵈ with P(θⱼ = 1) = pⱼ.

        T = θ,  λ = ½log p/(1−p),  μ = tanh λ = 2p − 1,  A = Σ log 2cosh λ

    Args:
        half_log_odds: λ (..., d).

    Examples:
        >>> SignBernoulli([0.0, 20.0]).mean
        tensor([0., 1.], dtype=torch.float64)
    """

    event_dims = (1,)
    theta_dims = 1

    def __init__(self, half_log_odds: Any) -> None:
        (self._half_log_odds,) = parameters({"half_log_odds": (half_log_odds, 1)})

    @property
    def natural(self) -> Coordinates:
        return (self._half_log_odds,)

    @property
    def expectation(self) -> Coordinates:
        return (self.mean,)

    @classmethod
    def from_natural(cls, natural: Coordinates) -> Self:
        return cls(*cls._blocks("natural", natural))

    @classmethod
    def from_expectation(cls, expectation: Coordinates, start: Self | None = None) -> Self:
        (mean,) = cls._blocks("expectation", expectation)
        between("expectation[0]", mean, -1.0, 1.0)
        return cls(torch.atanh(mean))

    def log_partition(self) -> Tensor:
        return torch.logaddexp(self._half_log_odds, -self._half_log_odds).sum(-1)

    def statistics(self, theta: Tensor) -> Coordinates:
        return (theta,)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        probability = (2.0 * self._half_log_odds).sigmoid()
        return 2.0 * torch.bernoulli(probability.expand(n, *probability.shape), generator=generator) - 1.0

    @property
    def mean(self) -> Tensor:
        return self._half_log_odds.tanh()

    @property
    def variance(self) -> Tensor:
        return 4.0 * (2.0 * self._half_log_odds).sigmoid() * (-2.0 * self._half_log_odds).sigmoid()

    def support(self) -> Tensor:
        return _all_words((-1.0, 1.0), self._half_log_odds)
