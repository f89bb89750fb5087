"""The Poisson family, whose base measure 1/θ! is not constant."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from posterity.families._base import CoordinateFamily, Coordinates
from posterity.families.checks import between, parameters
from posterity.families.special import LOG_2PI

_LARGE = 1e4  # from here on series in 1/r are exact to the last bit


def _large_entropy(rate: Tensor) -> Tensor:
    """½log 2πer − 1/12r − 1/24r² − …, the entropy at large rates."""
    return 0.5 * (1.0 + LOG_2PI + rate.log()) - (1.0 + 0.5 / rate) / (12.0 * rate)


class Poisson(CoordinateFamily):
    """Counts θ = 0, 1, 2, … with rate r.

        T = θ,  λ = log r,  μ = r,  A = e^λ,  log h = −log θ!,  ∇_μ E[log h] = −E[log(θ + 1)]

    The last identity is d/dr E[f(θ)] = E[f(θ + 1) − f(θ)].

    Args:
        rate: r (...), positive.
    """

    event_dims = (0,)

    def __init__(self, rate: Any) -> None:
        (self.rate,) = parameters({"rate": (rate, 0)})
        between("rate", self.rate, 0.0)

    @property
    def natural(self) -> Coordinates:
        return (self.rate.log(),)

    @property
    def expectation(self) -> Coordinates:
        return (self.rate,)

    @classmethod
    def from_natural(cls, natural: Coordinates) -> Self:
        return cls(cls._blocks("natural", natural)[0].exp())

    @classmethod
    def from_expectation(cls, expectation: Coordinates, start: Self | None = None) -> Self:
        return cls(*cls._blocks("expectation", expectation))

    def log_partition(self) -> Tensor:
        return self.rate

    def statistics(self, theta: Tensor) -> Coordinates:
        return (theta,)

    def log_base_measure(self, theta: Tensor) -> Tensor:
        return -torch.lgamma(theta + 1.0)

    def expected_log_base_measure(self) -> Tensor:
        counts, probabilities = self._bulk()
        large = self.rate.clamp(min=_LARGE)
        series = large - large * large.log() - _large_entropy(large)
        return torch.where(self.rate < _LARGE, (probabilities * self.log_base_measure(counts)).sum(0), series)

    def base_measure_gradient(self) -> Coordinates:
        counts, probabilities = self._bulk()
        large = self.rate.clamp(min=_LARGE)
        series = -large.log() - (0.5 + (1.0 / 12.0) * (1.0 / large + 1.0 / large**2)) / large
        return (torch.where(self.rate < _LARGE, -(probabilities * torch.log1p(counts)).sum(0), series),)

    def _entropy(self) -> Tensor:
        # At large rates r − r log r + E[log θ!] would cancel all its digits.
        return torch.where(self.rate < _LARGE, super()._entropy(), _large_entropy(self.rate.clamp(min=_LARGE)))

    def _bulk(self) -> tuple[Tensor, Tensor]:
        """The counts within ten standard deviations of the mean and their probabilities, (width, *batch).

        The probabilities come from their ratios p(θ)/p(θ − 1) = r/θ, which stay exact at rates where log θ! does not.
        """
        rate = self.rate.clamp(max=_LARGE)
        width = int(10.0 * rate.detach().amax().sqrt().item()) + 30
        offsets = torch.arange(2 * width + 1, dtype=rate.dtype, device=rate.device).reshape(-1, *[1] * rate.ndim)
        counts = (rate.detach() - width).clamp(min=0.0).floor() + offsets
        ratios = torch.cat((torch.zeros_like(rate)[None], (rate / counts[1:]).log()))
        return counts, ratios.cumsum(0).softmax(0)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        return torch.poisson(self.rate.expand(n, *self.rate.shape), generator=generator)

    @property
    def mean(self) -> Tensor:
        return self.rate

    @property
    def variance(self) -> Tensor:
        return self.rate

    def to_torch(self) -> torch.distributions.Poisson:
        return torch.distributions.Poisson(self.rate)
