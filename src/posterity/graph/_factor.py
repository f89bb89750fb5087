"""The contract of a factor: the expectation of its logarithm, and its gradient in every neighbour's μ."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from torch import Tensor

from posterity.errors import InvalidInput, expected, require
from posterity.families import Coordinates, Family
from posterity.graph.modes import PointMass

Belief = Family | PointMass
Beliefs = Mapping[str, Belief]


@dataclass(frozen=True)
class Evaluation:
    """A factor under q: its value E_q[log f], and its message to each neighbour, all computed when asked for.

    Hidden variables that a factor sums out (labels, paths, words' topics) add their entropy to the value.

    Args:
        log_factor: E_q[log f].
        messages: The messages, by neighbour.
    """

    log_factor: Callable[[], Tensor]
    messages: Mapping[str, Callable[[], Coordinates]]

    @cached_property
    def value(self) -> Tensor:
        """E_q[log f]."""
        return self.log_factor()


class Factor(ABC):
    """A term log f(x₁, x₂, …) of the log-joint of a model.

    Inference needs only E_q[log f] as a function of the expectation parameters of its neighbours, and

        message to i = ∇_{μ_i} E_q[log f],

    which for a conjugate-exponential factor is the message of variational message passing.

    `separable` means that, given the variables the factor sums out, log f is a sum of one term for each neighbour,
    which may then be updated together.
    """

    separable: bool = False

    @property
    def size(self) -> int | None:
        """Rows of the plate of data, None where there is none."""
        return None

    @property
    @abstractmethod
    def neighbours(self) -> Mapping[str, type[Family] | tuple[type[Family], ...]]:
        """The variables it touches, and the families to which it has a message."""

    @abstractmethod
    def evaluate(self, q: Beliefs) -> Evaluation:
        """E_q[log f] and the messages."""

    def take(self, rows: Tensor) -> Self:
        """The same factor on some rows of its plate."""
        raise expected("take", "a factor on a plate of data", type(self).__name__)

    def check(self, q: Mapping[str, Family]) -> None:
        """Raise unless every neighbour is there, and of a family and shape that messages can be sent to."""
        for name, known in self.neighbours.items():
            if name not in q:
                raise expected(f"{type(self).__name__}: {name!r}", f"one of the variables {sorted(q)}", name)
            if not isinstance(q[name], known):
                families = known if isinstance(known, tuple) else (known,)
                wanted = " or ".join(family.__name__ for family in families)
                got = type(q[name]).__name__
                raise InvalidInput(
                    f"no message is known from {type(self).__name__} to {name!r}: expected {wanted}, got {got}"
                )


def batch_shape(q: Family) -> tuple[int, ...]:
    """The plates of a variable."""
    return tuple(q.log_partition().shape)


def require_one(q: Mapping[str, Family], *names: str) -> None:
    """Raise unless each of these variables is a single member."""
    for name in names:
        require(batch_shape(q[name]) == (), f"plates of {name!r}", "(), a single member", batch_shape(q[name]))
