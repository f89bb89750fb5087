"""The factors of a model under q: their values, their messages and the bound."""

from __future__ import annotations

import torch
from torch import Tensor

from posterity.families import Coordinates, Family
from posterity.graph._factor import Belief, Beliefs, Evaluation
from posterity.graph._model import Model


class Evaluated:
    """The factors of a model under q, each evaluated again only when one of its neighbours has moved."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._known: list[tuple[tuple[Belief, ...], Evaluation] | None] = [None] * len(model.factors)

    def factor(self, index: int, q: Beliefs) -> Evaluation:
        """E_q[log f] and the messages of one factor."""
        neighbours = tuple(q[name] for name in self.model.factors[index].neighbours)
        known = self._known[index]
        if known is not None and all(a is b for a, b in zip(known[0], neighbours, strict=True)):
            return known[1]
        evaluation = self.model.factors[index].evaluate(q)
        self._known[index] = neighbours, evaluation
        return evaluation

    def message(self, name: str, q: Beliefs, weight: float = 1.0) -> Coordinates:
        """The prior's λ₀ plus the messages of all factors; those of the data count `weight` times."""
        prior = self.model.prior(name)
        total = None if prior is None else prior.natural
        for index, factor in enumerate(self.model.factors):
            if name not in factor.neighbours:
                continue
            scale = 1.0 if factor.size is None else weight
            part = self.factor(index, q).messages[name]()
            total = (
                tuple(scale * p for p in part) if total is None else tuple(t + scale * p for t, p in zip(total, part))
            )
        assert total is not None
        return total

    def bound(self, q: Beliefs, weight: float = 1.0) -> Tensor:
        """E_q[log p(x, z)] + H(q), below the evidence log p(x); for points, the log-joint at the modes."""
        total = torch.zeros((), dtype=torch.float64)
        for index, factor in enumerate(self.model.factors):
            total = total + (1.0 if factor.size is None else weight) * self.factor(index, q).value
        for name, belief in q.items():
            total = total - (weight if name in self.model.local else 1.0) * _price(belief, self.model.prior(name))
        return total


def _price(belief: Belief, prior: Family | None) -> Tensor:
    """KL(q ‖ p₀), or −H(q) without a prior; for a point −log p₀(θ*)."""
    if isinstance(belief, Family):
        return (-belief.entropy() if prior is None else belief.kl(prior)).sum()
    if prior is None:
        return torch.zeros((), dtype=torch.float64)
    return (prior.log_partition() - prior.pair(prior.natural, belief.expectation)).sum()
