"""Optimizers for which a sum of products is not enough: each sample's noise meets its own gradient, whole."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from posterity.errors import InvalidInput
from posterity.optim._received import Received
from posterity.optim.kernels import Piece


class Paired(Received):
    """Hands noise and gradient of each sample to `remember`, until a step or `zero_grad` asks to `forget_pairs`."""

    @abstractmethod
    def remember(self, noise: dict[Tensor, Tensor], gradients: dict[Tensor, Tensor]) -> None:
        """Keep what is needed of one sample; neither noise nor gradients may be kept as they are."""

    @abstractmethod
    def forget_pairs(self) -> None:
        """Forget all samples since the last step."""

    def _forget_transients(self) -> None:
        super()._forget_transients()
        self.forget_pairs()

    @torch.no_grad()
    def received(self, gradients: dict[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        """Remember noise and gradient of the sample in place as a pair."""
        if not self._samples.finished:  # a step was skipped, or gradients were taken away
            self.forget_pairs()
        if gradients:
            means, dtype = self._samples.means, torch.float64
            self.remember({p: p.to(dtype) - m.to(dtype) for p, m in means.items()}, gradients)
        return gradients

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        if not self._context_open:
            self.forget_pairs()

    def lone_noise(self, piece: Piece) -> Tensor:
        """The noise of an attached model's only sample."""
        if self._samples.finished > 1:
            raise InvalidInput(
                f"attach: expected one backward pass a step for {type(self).__name__}, got {self._samples.finished}"
            )
        return piece.tensors["sample"].double() - piece.tensors["p"].double()
