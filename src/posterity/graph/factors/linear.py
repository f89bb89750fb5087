"""Linear regression with Gaussian noise of unknown precision."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from posterity.batches import one_tensor
from posterity.errors import require
from posterity.families import Family, Gamma, Gaussian
from posterity.graph._factor import Beliefs, Evaluation, Factor, require_one


@dataclass(frozen=True)
class LinearFactor(Factor):
    """Σ_n log N(y_n | x_nᵀw, 1/τ).

        value = (N/2)(E log τ − log 2π) − ½ E[τ] E‖y − Xw‖²
        to w: E[τ] (Xᵀy, −½XᵀX),     to τ: (N/2, −½E‖y − Xw‖²)

    Args:
        weights: Name of w, a `Gaussian`.
        noise: Name of τ, a `Gamma`.
        inputs: X (N, d).
        targets: y (N,).
    """

    weights: str
    noise: str
    inputs: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        for name in ("inputs", "targets"):
            numbers = one_tensor(getattr(self, name)).to(torch.float64)
            require(bool(numbers.isfinite().all()), name, "finite numbers (leave out rows that lack some)", "others")
            object.__setattr__(self, name, numbers)
        require(self.inputs.ndim == 2, "inputs", "rows (N, d)", tuple(self.inputs.shape))
        rows = (len(self.inputs),)
        require(tuple(self.targets.shape) == rows, "targets", f"shape {rows}", tuple(self.targets.shape))

    @property
    def size(self) -> int:
        return len(self.targets)

    @property
    def neighbours(self) -> Mapping[str, type[Family]]:
        return {self.weights: Gaussian, self.noise: Gamma}

    def check(self, q: Mapping[str, Family]) -> None:
        super().check(q)
        require_one(q, self.weights, self.noise)
        columns = q[self.weights].event_shapes[0][0]
        require(self.inputs.shape[-1] == columns, "inputs", f"{columns} columns, as the weights", self.inputs.shape[-1])

    def take(self, rows: Tensor) -> Self:
        return type(self)(self.weights, self.noise, self.inputs[rows], self.targets[rows])

    @cached_property
    def _products(self) -> tuple[Tensor, Tensor]:
        return self.inputs.mT @ self.targets, self.inputs.mT @ self.inputs

    def evaluate(self, q: Beliefs) -> Evaluation:
        mean, second = q[self.weights].expectation
        log_tau, tau = q[self.noise].expectation
        linear, quadratic = self._products
        spread = second - torch.outer(mean, mean)
        error = ((self.targets - self.inputs @ mean) ** 2).sum() + (quadratic * spread).sum()
        half = torch.as_tensor(0.5 * self.size).to(tau)
        value = half * (log_tau - math.log(2.0 * math.pi)) - 0.5 * tau * error
        return Evaluation(
            lambda: value,
            {
                self.weights: lambda: (tau * linear, -0.5 * tau * quadratic),
                self.noise: lambda: (half, -0.5 * error),
            },
        )
