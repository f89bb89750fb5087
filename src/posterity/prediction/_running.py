"""Streaming statistics over draws: log-mean-exp of probabilities, moments, expected entropy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from posterity.distributed import gather
from posterity.errors import require
from posterity.likelihoods import Likelihood
from posterity.trees import state_dtype

PENDING = 2**18  # output numbers that are worth an operation of their own


class OutputStatistics(NamedTuple):
    """What is known about each target of a batch."""

    mean: Tensor  # E[ E[y | f] ]
    spread: Tensor | None  # Var[ E[y | f] ] over draws
    log_probs: Tensor | None = None  # log E[ p(y | f) ] of classes, (..., K)
    expected_entropy: Tensor | None = None  # E[ H(y | f) ] of classes, (...)
    outputs: Tensor | None = None  # f of every draw, (draws, ...)

    def gathered(self) -> OutputStatistics:
        """The statistics of all processes that share a prediction, one after the other."""
        spread, log_probs, entropy = (None if t is None else gather(t) for t in self[1:4])
        outputs = None if self.outputs is None else gather(self.outputs, axis=1)
        return OutputStatistics(gather(self.mean), spread, log_probs, entropy, outputs)

    def to(self, device: torch.device) -> OutputStatistics:
        """The same on a device."""
        return OutputStatistics(self.mean.to(device), *(None if t is None else t.to(device) for t in self[1:]))


def joined(parts: Sequence[OutputStatistics]) -> OutputStatistics:
    """The statistics of all batches, one after the other."""
    shapes = {tuple(part.mean.shape[1:]) for part in parts}
    require(len(shapes) == 1, "model outputs", "the same shape in every batch (pad sequences)", sorted(shapes))

    def column(values: Sequence[Tensor | None], axis: int = 0) -> Tensor | None:
        there = [value for value in values if value is not None]
        return torch.cat(there, axis) if there else None

    return OutputStatistics(
        torch.cat([part.mean for part in parts]),
        column([part.spread for part in parts]),
        column([part.log_probs for part in parts]),
        column([part.expected_entropy for part in parts]),
        column([part.outputs for part in parts], axis=1),
    )


class Running:
    """Statistics of outputs that come a few draws at a time; of a draw itself nothing is kept unless asked for."""

    def __init__(self, likelihood: Likelihood, keep: bool) -> None:
        self.likelihood = likelihood
        self.count = 0
        self._kept: list[Tensor] | None = [] if keep else None
        self._pending: list[Tensor] = []
        self._numbers = 0
        self._mean = self._squares = self._log_sum = self._entropy = torch.zeros(())

    def add(self, f: Tensor) -> None:
        """Take in outputs (draws, batch, ...)."""
        f = f.to(state_dtype(f.dtype))
        if self._kept is not None:
            self._kept.append(f)
        self._pending.append(f)
        self._numbers += f.numel()
        if self._numbers >= PENDING:
            self._digest()

    def _digest(self) -> None:
        if not self._pending:
            return
        f = torch.cat(self._pending)
        self._pending, self._numbers = [], 0
        log_p = self.likelihood.log_probs(f)
        if log_p is None:
            self._add_moments(self.likelihood.mean(f))
            return
        p = log_p.exp()
        total = log_p.logsumexp(0)
        self._log_sum = torch.logaddexp(self._log_sum, total) if self.count else total
        # A class that is ruled out has log p = −∞ and p log p = 0.
        self._entropy = self._entropy - (p * log_p.clamp_min(torch.finfo(p.dtype).min)).sum((0, -1))
        self._add_moments(p[..., 1] if p.ndim > f.ndim else p)  # of a binary target, p(y = 1)

    def _add_moments(self, values: Tensor) -> None:
        """Merge the means and summed squared deviations of two groups of draws (Chan, Golub and LeVeque, 1983)."""
        n, m = self.count, len(values)
        mean = values.mean(0)
        shift = mean - self._mean
        self.count = n + m
        self._mean = self._mean + shift * (m / self.count)
        self._squares = self._squares + (values - mean).square_().sum(0) + shift.square() * (n * m / self.count)

    def finish(self) -> OutputStatistics:
        """The statistics of all draws, as of a mixture in which each has the same weight."""
        self._digest()
        require_finite(self._mean)
        kept = torch.cat(self._kept) if self._kept is not None else None
        spread = self._squares / self.count
        if self._log_sum.ndim == 0:
            return OutputStatistics(self._mean, spread, outputs=kept)
        log_p = self._log_sum - math.log(self.count)
        return OutputStatistics(self._mean, spread, log_p, self._entropy / self.count, kept)


def require_finite(outputs: Tensor) -> None:
    """Raise if a network has answered with NaN or infinity."""
    require(bool(torch.isfinite(outputs).all()), "model outputs", "finite numbers", "NaN or infinity")
