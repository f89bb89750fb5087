"""Exact expectations over the finitely many states of a discrete q."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from posterity.errors import expected
from posterity.families import Bernoulli, Categorical, Coordinates, SignBernoulli
from posterity.gradients._base import AnyFamily, Estimator, values_at
from posterity.gradients.losses import AnyLoss

Discrete = Bernoulli | SignBernoulli | Categorical


@dataclass(frozen=True)
class Enumeration(Estimator):
    """No approximation: all states are visited, the 2ᵈ of d independent bits or the K of a categorical.

        bits:         ∂E_q[ℓ]/∂μⱼ = (E_q[ℓ | θⱼ high] − E_q[ℓ | θⱼ low]) / (high − low)
        categorical:  ∂E_q[ℓ]/∂μₖ = ℓ(eₖ) − ℓ(e_K)

    The conditional form of the first stays exact where q is all but certain of a bit.
    """

    def __call__(self, q: AnyFamily, loss: AnyLoss) -> Coordinates:
        discrete, values = self._visit(q, loss)
        if isinstance(discrete, Categorical):
            return ((values[:-1] - values[-1]).expand(discrete.natural[0].shape),)
        states = _between(discrete)
        low, high = states.amin(), states.amax()
        bits = discrete.with_natural((discrete.natural[0].unsqueeze(-1),))  # d members of one bit each
        each = bits.log_prob(states.unsqueeze(-1))  # (states, *batch, d)
        # Dividing the probability of a state by that of its j-th bit leaves that of the other bits.
        others = (each.sum(-1, keepdim=True) - each).exp()
        signs = torch.where(states == high, 1.0, -1.0)
        return (torch.einsum("s,s...->...", values, signs * others) / (high - low),)

    def expectation(self, q: AnyFamily, loss: AnyLoss) -> Tensor:
        discrete, values = self._visit(q, loss)
        return torch.einsum("s,s...->...", values, discrete.log_prob(_between(discrete)).exp())

    def _visit(self, q: AnyFamily, loss: AnyLoss) -> tuple[Discrete, Tensor]:
        """The same q, checked to be discrete, and the loss of each of its states."""
        if not isinstance(q, Discrete):
            raise expected("Enumeration", "a q over independent bits or classes", type(q).__name__)
        return q, values_at(loss, q.support())


def _between(q: Discrete) -> Tensor:
    """All states, (states, *batch axes of size one, event)."""
    states = q.support()
    return states.reshape(len(states), *[1] * (q.natural[0].ndim - 1), -1)
