"""Likelihoods that are conjugate to q: the gradient is a constant."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from posterity.errors import expected, require
from posterity.families import Coordinates
from posterity.gradients._base import AnyFamily, Estimator, as_family
from posterity.gradients.losses import AnyLoss, ConjugateLoss


@dataclass(frozen=True)
class Conjugate(Estimator):
    """No approximation: E_q[ℓ] = −⟨t, μ⟩ + const is linear in μ, so that ∇_μ E_q[ℓ] = −t for every q."""

    def __call__(self, q: AnyFamily, loss: AnyLoss) -> Coordinates:
        statistics = self._statistics(q, loss)
        return tuple(-t.to(block).expand(block.shape) for t, block in zip(statistics, q.natural, strict=True))

    def expectation(self, q: AnyFamily, loss: AnyLoss) -> Tensor:
        return -as_family(q, "Conjugate").pair(self._statistics(q, loss), q.expectation)

    def _statistics(self, q: AnyFamily, loss: AnyLoss) -> Coordinates:
        if not isinstance(loss, ConjugateLoss):
            raise expected("loss", "a ConjugateLoss", type(loss).__name__)
        if len(loss.statistics) != len(q.natural):
            raise expected("statistics", f"{len(q.natural)} blocks, as q.natural", len(loss.statistics))
        for t, block in zip(loss.statistics, q.natural, strict=True):
            fits = t.ndim <= block.ndim and all(
                a in (1, b) for a, b in zip(t.shape[::-1], block.shape[::-1], strict=False)
            )
            require(fits, "statistics", f"a block that fits λ, {tuple(block.shape)}", tuple(t.shape))
        return loss.statistics
