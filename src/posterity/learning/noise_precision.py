"""The noise of a regression, learnt beside the weights."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

_LARGEST = 1e8


class NoisePrecision:
    """The precision β of y ~ N(f, 1/β) that maximises the evidence lower bound, followed step by step.

        1/β  =  E_q[ (y − f(x; θ))² ],   averaged over data and outputs

    With weights held in q, this is the M-step of variational EM: the squared residual at the mean plus the variance
    of the function under q, so a network that has memorised its targets still has a positive noise estimate.
    Training passes already run at weights drawn from q: their squared errors over the last epoch, or over the last
    twentieth of training where that is longer, are the estimate, and cost nothing. For methods that draw no weights,
    q is a point and β the maximum-likelihood value on the training residuals; Laplace learns it anew, by the evidence.

    Args:
        memory: Number of steps that are averaged.
        window: Summed squared error and number of targets of each of the last steps.
    """

    def __init__(self, memory: int, window: Iterable[tuple[float, float]] = ()) -> None:
        self.memory = memory
        self.window = deque(window, maxlen=memory)

    @classmethod
    def over(cls, epochs: int, steps_per_epoch: int) -> NoisePrecision:
        """The average that suits a training of that length: whole epochs, so that every example counts the same."""
        return cls(max(epochs // 20, 1) * steps_per_epoch)

    def update(self, squared_error: float, count: float) -> float:
        """Take in one step's summed squared error over `count` targets and return the new precision."""
        self.window.append((squared_error, count))
        return self.value

    @property
    def value(self) -> float:
        """The current precision."""
        error = math.fsum(e for e, _ in self.window)
        mass = math.fsum(c for _, c in self.window)
        return min(mass / error, _LARGEST) if error > 0 else _LARGEST
