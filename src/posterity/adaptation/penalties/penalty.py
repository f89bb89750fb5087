"""The contract of every method that keeps old knowledge: a term to add to any loss, scaled in one place.

A penalty is written as a total: it replaces the losses summed over the old data. `penalty(model)` divides it by `n`,
the number of examples whose mean is the task loss it is added to; with a task loss that is a sum, n stays 1. Nothing
else divides by N.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn

from posterity.errors import require, require_positive
from posterity.trees import Tree


@dataclass(frozen=True, eq=False, kw_only=True)
class Penalty(ABC):
    """A function of a model's parameters that replaces data which are no longer available.

    Penalties add, and a number times a penalty is one. Given to `po.fit(..., penalty=...)` or added by hand:

        loss = F.cross_entropy(model(x), y) + prior.over(len(new_data)).penalty(model)

    Args:
        n: Number of examples that the task loss is a mean over; 1 for a task loss that is a sum.
    """

    n: int = 1

    @abstractmethod
    def total(self, model: nn.Module) -> Tensor:
        """The penalty on the scale of a loss summed over data."""

    def penalty(self, model: nn.Module) -> Tensor:
        """The penalty on the scale of a mean over `n` examples: what is added to the task loss."""
        return self.total(model) / self.n

    def __call__(self, model: nn.Module) -> Tensor:
        """The same as `penalty`."""
        return self.penalty(model)

    def over(self, n: int) -> Self:
        """The same penalty beside a task loss that is a mean over n examples."""
        require_positive("n", n)
        return replace(self, n=n)

    def __add__(self, other: Penalty) -> Sum:
        if not isinstance(other, Penalty):
            return NotImplemented
        require(self.n == other.n, "penalties to add", "the same n (`over` comes last)", f"{self.n} and {other.n}")
        return Sum((*_terms(self), *_terms(other)), n=self.n)

    def __rmul__(self, factor: float) -> Sum:
        return Sum(tuple((factor * share, term) for share, term in _terms(self)), n=self.n)


@dataclass(frozen=True, eq=False)
class Sum(Penalty):
    """Penalties added up, each times a number.

    Args:
        terms: Pairs of a factor and a penalty.
    """

    terms: tuple[tuple[float, Penalty], ...]

    def total(self, model: nn.Module) -> Tensor:
        if not self.terms:
            return next(model.parameters()).new_zeros(())
        return torch.stack([factor * term.total(model).double() for factor, term in self.terms]).sum()


def _terms(penalty: Penalty) -> tuple[tuple[float, Penalty], ...]:
    return penalty.terms if isinstance(penalty, Sum) else ((1.0, penalty),)


def gradient(penalty: Penalty, model: nn.Module, names: tuple[str, ...] | None = None) -> Tree:
    """The gradient of a penalty's total in the model's parameters."""
    there = {
        name: p for name, p in model.named_parameters() if (names is None and p.requires_grad) or name in (names or ())
    }
    found = torch.autograd.grad(penalty.total(model), list(there.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(there, found))
