"""Optimizers for which a sum of products is not enough: each sample's noise meets its own gradient, whole."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from posterity.errors import InvalidInput
from posterity.optim._passes import Apart
from posterity.optim._variational import VariationalOptimizer
from posterity.optim.kernels import Piece


class Paired(VariationalOptimizer):
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

    @contextmanager
    def sampled_params(self, train: bool = False) -> Iterator[None]:
        """As for every variational optimizer; noise and gradient of each sample are remembered as a pair."""
        if not train:
            with super().sampled_params(train):
                yield
            return
        self._apart = Apart(self._trained())
        with super().sampled_params(train):
            if not self._samples.finished:  # a step was skipped, or gradients were taken away
                self.forget_pairs()
            with self._apart:
                yield
            if self._apart.found:
                with torch.no_grad():
                    means, dtype = self._samples.means, torch.float64
                    self.remember({p: p.to(dtype) - m.to(dtype) for p, m in means.items()}, self._apart.found)
            self._apart.add()

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        if self._context_open:
            self._apart.drop()
        else:
            self.forget_pairs()

    def lone_noise(self, piece: Piece) -> Tensor:
        """The noise of an attached model's only sample."""
        if self._samples.finished > 1:
            raise InvalidInput(
                f"attach: expected one backward pass a step for {type(self).__name__}, got {self._samples.finished}"
            )
        return piece.tensors["sample"].double() - piece.tensors["p"].double()
