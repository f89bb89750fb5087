"""Optimizers that look at the gradients of each sample before these are added to those of earlier ones."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from posterity.optim._passes import Apart
from posterity.optim._variational import VariationalOptimizer


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
        self._apart = Apart(self._trained())
        with super().sampled_params(train):
            with self._apart:
                yield
            self._apart.found = self.received(self._apart.found)
            self._apart.add()

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        if self._context_open:
            self._apart.drop()
