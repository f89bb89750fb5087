"""The categorical family over K classes, in K − 1 minimal coordinates."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from posterity.families._base import CoordinateFamily, Coordinates
from posterity.families.checks import between, parameters


class Categorical(CoordinateFamily):
    """One of K classes, θ one-hot (..., K).

        T = (θ_1, …, θ_{K−1}),  λ = log p_k/p_K,  μ = (p_1, …, p_{K−1}),  A = log(1 + Σ e^λ)

    The last class is the reference: with all K log-probabilities the Fisher matrix would be singular.

    Args:
        log_odds: λ (..., K − 1), log-odds against the last class.

    Examples:
        >>> Categorical.from_expectation((torch.tensor([0.2, 0.3]),)).mean
        tensor([0.2000, 0.3000, 0.5000])
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
        return (self.mean[..., :-1],)

    @classmethod
    def from_natural(cls, natural: Coordinates) -> Self:
        return cls(*cls._blocks("natural", natural))

    @classmethod
    def from_expectation(cls, expectation: Coordinates, start: Self | None = None) -> Self:
        (p,) = cls._blocks("expectation", expectation)
        between("expectation[0]", p, 0.0, 1.0)
        last = 1.0 - p.sum(-1, keepdim=True)
        between("probability of the last class (1 − sum of expectation[0])", last, 0.0)
        return cls(p.log() - last.log())

    @property
    def log_probabilities(self) -> Tensor:
        """log p (..., K), finite however small p is."""
        zero = self._log_odds.new_zeros((*self._log_odds.shape[:-1], 1))
        return torch.cat((self._log_odds, zero), -1).log_softmax(-1)

    def log_partition(self) -> Tensor:
        return -self.log_probabilities[..., -1]

    def statistics(self, theta: Tensor) -> Coordinates:
        return (theta[..., :-1],)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        p = self.mean
        drawn = torch.multinomial(p.reshape(-1, p.shape[-1]), n, replacement=True, generator=generator)
        labels = drawn.mT.reshape(n, *p.shape[:-1])
        return torch.nn.functional.one_hot(labels, p.shape[-1]).to(p.dtype)

    @property
    def mean(self) -> Tensor:
        return self.log_probabilities.exp()

    @property
    def variance(self) -> Tensor:
        return self.mean * (1.0 - self.mean)

    def support(self) -> Tensor:
        return torch.eye(self._log_odds.shape[-1] + 1, dtype=self._log_odds.dtype, device=self._log_odds.device)

    def to_torch(self) -> torch.distributions.OneHotCategorical:
        return torch.distributions.OneHotCategorical(logits=self.log_probabilities)
