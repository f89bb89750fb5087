"""The score-function estimator: gradients from values of the loss alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from posterity.errors import require_whole
from posterity.families import ConditionalFamily, Coordinates
from posterity.gradients._base import AnyFamily, Estimator, values_at
from posterity.gradients.losses import AnyLoss


@dataclass(frozen=True)
class ScoreFunction(Estimator):
    """∇_μ E_q[ℓ] = E_q[(ℓ(θ) − b) ∇_μ log q_μ(θ)], for every family, mixtures too, and any loss.

    The baseline b of each sample is the average loss of all the others: it keeps the estimate unbiased and takes
    away the part of the variance that the size of the loss would bring.

    Args:
        samples: At least 2, so that there are others.
        generator: Source of randomness; torch's own when left out.
    """

    samples: int = 100
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        require_whole("samples", self.samples, 2)

    def __call__(self, q: AnyFamily, loss: AnyLoss) -> Coordinates:
        theta, values = self._draw(q, loss)
        # ℓ − mean of the others = (ℓ − mean of all) M/(M − 1)
        surplus = (values - values.mean(0)) * (self.samples / (self.samples - 1))
        with torch.enable_grad():
            if isinstance(q, ConditionalFamily):
                return q.natural_gradient(lambda member: (surplus * member.log_prob(theta)).mean(0))
            expectation = tuple(block.detach().clone().requires_grad_() for block in q.expectation)
            log_prob = q.with_expectation(expectation).log_prob(theta)
            return torch.autograd.grad((surplus * log_prob).mean(0).sum(), expectation)

    def expectation(self, q: AnyFamily, loss: AnyLoss) -> Tensor:
        return self._draw(q, loss)[1].mean(0)

    def _draw(self, q: AnyFamily, loss: AnyLoss) -> tuple[Tensor, Tensor]:
        theta = q.sample(self.samples, self.generator).detach()
        return theta, values_at(loss, theta, dims=q.theta_dims).detach()
