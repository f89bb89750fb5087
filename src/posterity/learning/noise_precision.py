"""The noise of a regression, learnt beside the weights."""

from __future__ import annotations

from dataclasses import dataclass

_SMALLEST, _LARGEST = 1e-8, 1e8


@dataclass
class NoisePrecision:
    """The precision β of y ~ N(f, 1/β) that maximises the evidence lower bound, followed step by step.

        1/β  =  E_q[ (y − f(x; θ))² ],   averaged over data and outputs

    With weights held in q, this is the M-step of variational EM: the squared residual at the mean plus the variance
    of the function under q, so a network that has memorised its targets does not believe them to be noiseless.
    Training passes already run at weights drawn from q: their squared errors, averaged over the last epoch's worth
    of steps (exponential weights, debiased), are the estimate and cost nothing. For methods that draw no weights,
    q is a point and β the maximum-likelihood value on the training residuals.

    Args:
        memory: Number of steps the average looks back, one epoch's worth.
    """

    memory: int = 1
    error: float = 0.0
    mass: float = 0.0

    def update(self, squared_error: float, count: float) -> float:
        """Take in one step's summed squared error over `count` targets and return the new precision."""
        keep = 1 - 1 / self.memory
        self.error = keep * self.error + squared_error
        self.mass = keep * self.mass + count
        return self.value

    @property
    def value(self) -> float:
        """The current precision."""
        if self.error == 0:
            return 1.0 if self.mass == 0 else _LARGEST
        return min(max(self.mass / self.error, _SMALLEST), _LARGEST)
