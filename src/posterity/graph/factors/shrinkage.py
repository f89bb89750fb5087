"""Shrinkage: a Gaussian variable around zero whose precision is a variable too."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from posterity.errors import require
from posterity.families import Family, Gamma, Gaussian
from posterity.graph._factor import Beliefs, Evaluation, Factor, batch_shape, require_one


@dataclass(frozen=True)
class Shrinkage(Factor):
    """Σ_j log N(w_j | 0, 1/α), or 1/α_j with a precision for each coordinate (automatic relevance determination).

        value = ½ Σ_j (E log α_j − log 2π − E[α_j] E[w_j²])
        to w: (0, −½ diag E[α]),     to α_j: (½, −½E[w_j²]), summed over j where α is one number

    Args:
        weights: Name of w, a `Gaussian`.
        precision: Name of α, a `Gamma`, one or one for each coordinate.
        count: How many coordinates of w, from the first on, are shrunk; all unless given.
    """

    weights: str
    precision: str
    count: int | None = None

    @property
    def neighbours(self) -> Mapping[str, type[Family]]:
        return {self.weights: Gaussian, self.precision: Gamma}

    def check(self, q: Mapping[str, Family]) -> None:
        super().check(q)
        require_one(q, self.weights)
        d, plates = q[self.weights].event_shapes[0][0], batch_shape(q[self.precision])
        require(self.count is None or 0 < self.count <= d, "count", f"1 to {d}, as the weights have", self.count)
        d = self.count or d
        require(plates in ((), (d,)), f"plates of {self.precision!r}", f"() or ({d},)", plates)

    def evaluate(self, q: Beliefs) -> Evaluation:
        mean, second = q[self.weights].expectation
        log_alpha, alpha = q[self.precision].expectation
        squares = second.diagonal()[: self.count]
        each = log_alpha - math.log(2.0 * math.pi) - alpha * squares
        halves = torch.full_like(squares, 0.5), -0.5 * squares

        def to_weights() -> tuple[Tensor, Tensor]:
            pull = torch.zeros_like(mean)
            pull[: self.count] = -0.5 * alpha
            return torch.zeros_like(mean), torch.diag(pull)

        return Evaluation(
            lambda: 0.5 * each.sum(),
            {
                self.weights: to_weights,
                self.precision: lambda: halves if alpha.ndim else (halves[0].sum(), halves[1].sum()),
            },
        )
