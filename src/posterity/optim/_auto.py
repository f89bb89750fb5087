"""What IVON decides by itself where it is asked to: the effective sample size λ, and where the Hessian starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from posterity.errors import require, require_positive
from posterity.optim._distributed import Replicas
from posterity.optim._meter import REFRESH, price_of
from posterity.optim.price import Price

if TYPE_CHECKING:
    from posterity.optim.engine._statistics import Statistics

Auto = Literal["auto"]
BUDGET = 0.03  # nats per example that the noise may cost
FIRST = 3  # steps that the start of the Hessian counts for


def start_of_hessian(n: float) -> float:
    """Where "auto" starts h: σ ≤ 0.06. A wider start drowns few examples in noise; a narrower one is unlearnt late."""
    return max(0.1, 300 / n)


def usual_start(n: float, steps: int) -> dict[str, Any]:
    """Where IVON and its kin start in a training of known length that learns two thirds of the Hessian.

    The start stays in the width, so it is narrower than `start_of_hessian`: σ ≤ 0.03.
    """
    return {"hess_init": max(0.1, 1000 / n), "betas": (0.9, 1 - 1 / max(steps, 2))}


def decided(ess: float | Auto, hess_init: float | Auto, n: float | None) -> dict[str, Any]:
    """The options of a group with initial numbers in place of "auto", and a record of the automatic ones."""
    if n is not None:
        require_positive("n", n)
    for name, value in (("ess", ess), ("hess_init", hess_init)):
        require(not isinstance(value, str) or value == "auto", name, "a number, or 'auto'", value)
    if isinstance(ess, str):
        require(n is not None, 'n, for ess="auto"', "the number of training examples", None)
    size = ess if n is None else n
    forgets = isinstance(hess_init, str)
    return {
        "ess": size if isinstance(ess, str) else ess,
        "hess_init": start_of_hessian(float(size)) if isinstance(hess_init, str) else hess_init,
        "n": None if n is None else float(n),
        "holds_price": isinstance(ess, str),
        "forgets_start": forgets,
    }


class HeldPrice:
    """λ = max(N, P̂/2b), with the same window of prices as in `posterity.optim.price`, and a constant budget b.

    IVON learns curvature from noise, so that its noise cannot wait for the end of training. λ moves every so many
    steps; the host waits for a device only then.

    Args:
        n: Number of examples N.
        device: Of the weights.
    """

    def __init__(self, n: float, device: torch.device) -> None:
        self.price, self.steps = Price.of(n, BUDGET, device), 0
        self.unclear: Tensor | bool = False  # whether norms alone had to tell a GradScaler from clipping

    def pay_for(
        self,
        samples: Statistics,
        parameters: Sequence[Tensor],
        estimates: int,
        replicas: Replicas,
        scaler: torch.amp.GradScaler | None,
    ) -> bool:
        """Take in the price of the samples since the last step, if there were any; see `price_of`.

        Returns:
            Whether it is time for another λ.
        """
        found = price_of(samples, parameters, estimates, replicas, self.price.ess, scaler)
        if found is None:
            return False
        self.unclear = self.unclear | found[2]
        return self.pay(found[0])

    def pay(self, price: Tensor) -> bool:
        """Take in the price of a step; whether it is time for another λ."""
        self.price.pay(price, self.price.ess)
        self.steps += 1
        return self.steps % REFRESH == 0

    def held(self, parameters: Tensor | float) -> float:
        """λ from now on, where Σ h/(h + δ) is the number of parameters that noise would have to be paid for."""
        self.price.ess = self.price.held(torch.as_tensor(parameters).to(self.price.ess), 1.0)
        return float(self.price.ess)

    def state(self) -> dict[str, float]:
        """Plain numbers, for a state dict."""
        return {"steps": self.steps, **self.price.state()}

    def load(self, state: dict[str, float]) -> None:
        """Take back what `state` gave."""
        left = dict(state)
        self.steps = int(left.pop("steps"))
        self.price.load(left)
