"""Optimizers for which sums are not enough: they look at the gradients, or noise and gradients, of each sample."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from posterity.errors import InvalidInput
from posterity.optim._passes import IsolatedGradients
from posterity.optim.engine import VariationalOptimizer
from posterity.optim.kernels import Piece


class Received(VariationalOptimizer):
    """Hands the gradients of each sample to `received`, while the sample is in place."""

    @abstractmethod
    def received(self, gradients: dict[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        """What to add to `.grad` for the gradients of one sample."""

    @contextmanager
    def sampled_params(self, train: bool = False) -> Iterator[None]:
        """Hold a sample of the posterior in the parameters while the context is open.

        Args:
            train: Whether the gradients computed inside are to be learnt from at the next `step`.
        """
        if not train:
            with super().sampled_params(train):
                yield
            return
        self._apart = IsolatedGradients(self._trained())
        with super().sampled_params(train):
            with self._apart:
                yield
            self._apart.found = self.received(self._apart.found)
            self._apart.add()

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        if self._samples.context_open:
            self._apart.drop()


class Paired(Received):
    """Hands noise and gradient of each sample to `remember`, until a step or `zero_grad` asks to `forget_pairs`."""

    @abstractmethod
    def remember(self, noise: dict[Tensor, Tensor], gradients: dict[Tensor, Tensor]) -> None:
        """Keep what is needed of one sample; neither noise nor gradients may be kept without a copy."""

    @abstractmethod
    def forget_pairs(self) -> None:
        """Forget all samples since the last step."""

    def _forget_transients(self) -> None:
        super()._forget_transients()
        self.forget_pairs()

    @torch.no_grad()
    def received(self, gradients: dict[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        """Remember noise and gradient of the sample in place as a pair."""
        if not self._samples.statistics.finished:  # a step was skipped, or gradients were taken away
            self.forget_pairs()
        if gradients:
            means, dtype = self._samples.means, torch.float64
            self.remember({p: p.to(dtype) - m.to(dtype) for p, m in means.items()}, gradients)
        return gradients

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        if not self._samples.context_open:
            self.forget_pairs()

    def lone_noise(self, piece: Piece) -> Tensor:
        """The noise of an attached model's only sample."""
        passes = self._samples.statistics.finished
        if passes > 1:
            raise InvalidInput(f"attach: expected one backward pass a step for {type(self).__name__}, got {passes}")
        return piece.tensors["sample"].double() - piece.tensors["p"].double()
