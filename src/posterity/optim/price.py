"""The price of noise in the weights, and the effective sample size that holds it to a budget.

Noise of covariance Σ raises the mean loss by half the trace of ΣH. By Price's theorem, summed over all weights,

    c = ½ Σⱼ (θⱼ − mⱼ) ĝⱼ,    E[c] = ½ tr(ΣH) = P / 2λ    nats per example,

where P is the effective number of parameters and Σ = 1/(λ (h + δ)). A single weight's product is hopelessly noisy where
λ is large; the sum over all of them is precise, and costs a dot product. One c has a variance that falls with λ, so the
best average of P = 2λc weighs each step by 1/λ:

    P̂ = Σₜ 2cₜ / Σₜ (1/λₜ)    over a window,       λ = max(N, P̂ / 2bₜ).

The budget bₜ opens in the second half of training (`opening`), because noise from the start slows learning, and noise
that grows while the learning rate falls does not. It is smaller while the examples are seen for the first time: nothing
can have been memorised then. λ > N is a cold posterior, of temperature N/λ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

WINDOW = 50  # steps that P̂ averages over
LEAST, MOST = 0.02, 3.0  # bounds of P̂, as shares of the number that the squares of gradients give
SURE = 2.0  # standard deviations of P̂ below it, down to which it may exceed them
FRESH = 0.1  # share of the budget before any example is seen again
SHUT = 0.5  # of training, in which the budget stays closed but for a gap
AJAR = 1e-3  # that gap, as a share of the budget: P̂ is known when the budget opens


def opening(done: float, epochs: float) -> float:
    """The share of the budget that is open.

    Args:
        done: Share of training that is done, from 0 to 1.
        epochs: How often each example has been seen, on average.
    """
    seen_again = -math.expm1(-max(0.0, epochs - 1) / 2)
    late = max(0.0, min(1.0, done) - SHUT) / (1 - SHUT)
    return max(late**2, AJAR) * (FRESH + (1 - FRESH) * seen_again)


def progress(lr: float, peak: float, epochs: float) -> float:
    """The share of training that is done where its length is unknown.

    It follows the learning rate down from its peak, so that a warm-up does not look like the end; at a constant rate it
    follows the number of epochs.

    Args:
        lr: The learning rate now.
        peak: The largest so far.
        epochs: How often each example has been seen, on average.
    """
    decayed = 1 - lr / peak if peak > 0 else 0.0
    return max(decayed, -math.expm1(-epochs / 10))


@dataclass
class Price:
    """The window of prices, and the λ that follows from it; numbers on the device of the weights, without waiting.

    Args:
        n: Number of examples N; λ never falls below it.
        budget: Nats per example that the noise may cost when the budget is fully open.
    """

    n: float
    budget: float
    ess: Tensor
    paid: Tensor  # Σ 2c over the window
    per_ess: Tensor  # Σ 1/λ over the window
    last: Tensor  # the price of the last step

    @classmethod
    def of(cls, n: float, budget: float, device: torch.device) -> Price:
        """Nothing is paid yet."""
        zero = torch.zeros((), dtype=torch.float64 if device.type == "cpu" else torch.float32, device=device)
        return cls(n, budget, zero + n, zero.clone(), zero.clone(), zero.clone())

    def parameters(self, squares: Tensor, batch: float = 1.0) -> Tensor:
        """P̂, the effective number of parameters, which begins at P = Σ h/(h + δ).

        A price 2c has a variance of about P/(λB), so that P̂ has one of P/(B Σ 1/λ). It is held to a few times P as
        far as this may be chance: noise that breaks a network costs more than any multiple of P tells.

        Args:
            squares: P of squared gradients.
            batch: Examples B behind a gradient.
        """
        found, chance = self._found(squares, batch)
        return torch.minimum(torch.maximum(found, LEAST * squares), torch.maximum(MOST * squares, found - chance))

    def agreement(self, squares: Tensor, batch: float = 1.0) -> Tensor:
        """The largest likely ratio P̂/P, between 0 and 1; see `posterity.optim.gap`."""
        found, chance = self._found(squares, batch)
        return ((found + chance) / squares.clamp_min(1e-30)).clamp(0.0, 1.0)

    def _found(self, squares: Tensor, batch: float) -> tuple[Tensor, Tensor]:
        """P̂ as it was measured, and what chance may have added."""
        told = self.per_ess + 1 / self.ess
        return (self.paid + squares / self.ess) / told, SURE * (squares / (batch * told)).sqrt()

    def pay(self, price: Tensor, ess: Tensor) -> None:
        """Take in the price c of one step, whose sample was drawn at this λ."""
        kept = 1 - 1 / WINDOW
        self.last = price.to(self.paid)
        self.paid = kept * self.paid + 2 * self.last
        self.per_ess = kept * self.per_ess + 1 / ess

    def held(self, squares: Tensor, share: Tensor | float, batch: float = 1.0) -> Tensor:
        """λ = max(N, P̂ / 2bₜ) for a share of the budget; see `parameters`."""
        budget = torch.as_tensor(self.budget * share, dtype=squares.dtype, device=squares.device).clamp_min(1e-12)
        return (self.parameters(squares, batch) / (2 * budget)).clamp_min(self.n)

    def state(self) -> dict[str, float]:
        """Plain numbers, for a state dict."""
        return {name: float(getattr(self, name)) for name in ("ess", "paid", "per_ess", "last", "budget")}

    def load(self, state: dict[str, float]) -> None:
        """Take back what `state` gave."""
        for name, value in state.items():
            setattr(self, name, value if name == "budget" else torch.full_like(self.ess, value))
