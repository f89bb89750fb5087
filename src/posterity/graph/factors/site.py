"""Sites: a factor of any form, as its gradient in μ makes it look (non-conjugate message passing, CVI)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from torch import Tensor

from posterity.errors import expected
from posterity.families import Family
from posterity.gradients import AnyLoss, DataLoss, Estimator, Quadrature
from posterity.graph._factor import Beliefs, Evaluation, Factor


@dataclass(frozen=True)
class SiteFactor(Factor):
    """log f(θ) = −ℓ(θ), with ∇_μ E_q[ℓ] by an estimator.

        value = −E_q[ℓ],     to θ: −∇_μ E_q[ℓ]

    The message depends on q, so that sweeps repeat it, damped by ρ < 1, until it fits.

    Args:
        variable: Name of θ.
        loss: ℓ: a `LinearLoss` with any likelihood, or any function of θ.
        gradient: The estimator; quadrature unless given.
    """

    variable: str
    loss: AnyLoss
    gradient: Estimator = field(default_factory=Quadrature)

    @property
    def size(self) -> int | None:
        return len(self.loss.targets) if isinstance(self.loss, DataLoss) else None

    @property
    def neighbours(self) -> Mapping[str, type[Family]]:
        return {self.variable: Family}

    def take(self, rows: Tensor) -> Self:
        if not isinstance(self.loss, DataLoss):
            return super().take(rows)
        return replace(self, loss=replace(self.loss, inputs=self.loss.inputs[rows], targets=self.loss.targets[rows]))

    def evaluate(self, q: Beliefs) -> Evaluation:
        belief = q[self.variable]
        if not isinstance(belief, Family):
            raise expected(
                f"SiteFactor at {self.variable!r}", "a distribution (EM makes it a point)", type(belief).__name__
            )
        message = lambda: tuple(-block for block in self.gradient(belief, self.loss))  # noqa: E731
        return Evaluation(lambda: -self.gradient.expectation(belief, self.loss), {self.variable: message})
