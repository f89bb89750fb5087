"""The contract of an exponential family: natural and expectation parameters, and what follows from them."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Self

import torch
from torch import Tensor

from posterity.errors import Undefined, expected, require
from posterity.families.checks import parameters

Coordinates = tuple[Tensor, ...]


class Family(ABC):
    """A member q(θ) = h(θ) exp(⟨λ, T(θ)⟩ − A(λ)) of an exponential family, batched over leading axes.

    Members are immutable. `natural` (λ) and `expectation` (μ = ∇A(λ) = E_q[T]) are tuples with one tensor for each
    block of the sufficient statistic T, batch axes first; `event_dims` is the number of trailing axes of each block
    that belong to one member. θ is always one tensor; families over several variables stack them and define the layout.
    Everything is differentiable in the parameters, through both conversions.
    """

    event_dims: tuple[int, ...]
    theta_dims: int = 0  # trailing axes of one θ

    @property
    @abstractmethod
    def natural(self) -> Coordinates:
        """Natural parameters λ."""

    @property
    @abstractmethod
    def expectation(self) -> Coordinates:
        """Expectation parameters μ = E_q[T(θ)]."""

    @abstractmethod
    def with_natural(self, natural: Coordinates) -> Self:
        """The member of the same family (same constants, such as a fixed covariance) with these λ."""

    @abstractmethod
    def with_expectation(self, expectation: Coordinates) -> Self:
        """The member with these μ; where there is no closed form, Newton's method started at `self`."""

    @abstractmethod
    def log_partition(self) -> Tensor:
        """A(λ), one value for each member of the batch."""

    @abstractmethod
    def statistics(self, theta: Tensor) -> Coordinates:
        """T(θ), aligned with `natural`."""

    @abstractmethod
    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n draws, (n, *batch, *event)."""

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """E_q[θ]."""

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """Element-wise variance of θ."""

    def log_base_measure(self, theta: Tensor) -> Tensor:
        """log h(θ); zero unless the family overrides it."""
        return theta.new_zeros(theta.shape[: theta.ndim - self.theta_dims])

    def expected_log_base_measure(self) -> Tensor:
        """E_q[log h(θ)]; zero for a constant base measure."""
        return torch.zeros_like(self.log_partition())

    def base_measure_gradient(self) -> Coordinates:
        """∇_μ E_q[log h(θ)]; zero for a constant base measure."""
        return tuple(torch.zeros_like(block) for block in self.natural)

    def support(self) -> Tensor:
        """All values of θ, (states, *event), where they are finitely many."""
        raise Undefined(f"{type(self).__name__} has infinitely many states")

    def to_torch(self) -> torch.distributions.Distribution:
        """The same member as a torch distribution, where torch has one."""
        raise Undefined(f"torch.distributions has no member that equals {type(self).__name__}")

    def entropy(self) -> Tensor:
        """H(q) = A(λ) − ⟨λ, μ⟩ − E_q[log h]."""
        return self._in_double()._entropy().to(self.mean.dtype)

    def kl(self, other: Self) -> Tensor:
        """KL(q ‖ p) = ⟨λ_q − λ_p, μ_q⟩ − A(λ_q) + A(λ_p): the shared base measure cancels."""
        if not self.same_family(other):
            raise expected("kl", f"another {type(self).__name__} of the same size and constants", other)
        value = self._in_double()._divergence(other._in_double())
        return value.to(torch.promote_types(self.mean.dtype, other.mean.dtype))

    def same_family(self, other: object) -> bool:
        """Whether the other is a member of this very family: same class, same event shapes, same constants."""
        return isinstance(other, Family) and type(other) is type(self) and other.event_shapes == self.event_shapes

    @property
    def event_shapes(self) -> tuple[torch.Size, ...]:
        """The trailing axes of every block that belong to one member."""
        return tuple(
            block.shape[block.ndim - dims :] for block, dims in zip(self.natural, self.event_dims, strict=True)
        )

    def log_prob(self, theta: Tensor) -> Tensor:
        """log q(θ) = log h(θ) + ⟨λ, T(θ)⟩ − A(λ)."""
        event, found = (shape[len(shape) - self.theta_dims :] for shape in (self.mean.shape, theta.shape))
        require(found == event, "θ", f"last axes {tuple(event)}", f"shape {tuple(theta.shape)}")
        value = self._in_double()._log_density(theta.double())
        return value.to(torch.promote_types(self.mean.dtype, theta.dtype))

    def _in_double(self) -> Self:
        """The same member in double precision: the terms of A, ⟨λ, μ⟩ and ⟨λ, T⟩ are large and cancel."""
        wide = copy.copy(self)
        vars(wide).update({name: value.double() for name, value in vars(self).items() if isinstance(value, Tensor)})
        return wide

    # What entropy, kl and log_prob are of a member in double precision; families with better forms say so here.

    def _entropy(self) -> Tensor:
        return self.log_partition() - self.pair(self.natural, self.expectation) - self.expected_log_base_measure()

    def _divergence(self, other: Self) -> Tensor:
        difference = tuple(a - b for a, b in zip(self.natural, other.natural, strict=True))
        return self.pair(difference, self.expectation) - self.log_partition() + other.log_partition()

    def _log_density(self, theta: Tensor) -> Tensor:
        natural, blocks = self.natural, self.statistics(theta)
        statistics = tuple(_within(power, block) for power, block in zip(natural, blocks, strict=True))
        return self.log_base_measure(theta) + self.pair(natural, statistics) - self.log_partition()

    def pair(self, a: Coordinates, b: Coordinates) -> Tensor:
        """⟨a, b⟩, summed over the event axes of every block."""
        terms = [
            (left * right).sum(tuple(range(-dims, 0))) if dims else left * right
            for left, right, dims in zip(a, b, self.event_dims, strict=True)
        ]
        return sum(terms[1:], start=terms[0])

    @classmethod
    def _blocks(cls, what: str, coordinates: Coordinates) -> list[Tensor]:
        """The blocks of λ or μ, checked: as many as the family has, finite, one dtype, one batch shape."""
        count = len(cls.event_dims)
        require(
            isinstance(coordinates, tuple) and len(coordinates) == count,
            f"{what} parameters of {cls.__name__}",
            f"a tuple of {count} tensors",
            coordinates,
        )
        named = {f"{what}[{i}]": block for i, block in enumerate(zip(coordinates, cls.event_dims, strict=True))}
        return parameters(named)

    def __repr__(self) -> str:
        shapes = ", ".join(str(tuple(block.shape)) for block in self.natural)
        return f"{type(self).__name__}(natural: {shapes})"


def _within(power: Tensor, block: Tensor) -> Tensor:
    """0 · log 0 = 0: a flat density is flat up to the border of its support."""
    flat = power == 0.0
    return torch.where(flat & block.isinf(), 0.0, block) if bool(flat.any()) else block


class CoordinateFamily(Family):
    """A family that is determined by its coordinates: λ or μ alone make a member."""

    @classmethod
    @abstractmethod
    def from_natural(cls, natural: Coordinates) -> Self:
        """The member with natural parameters λ."""

    @classmethod
    @abstractmethod
    def from_expectation(cls, expectation: Coordinates, start: Self | None = None) -> Self:
        """The member with expectation parameters μ; `start` is where Newton's method starts, if one is needed."""

    def with_natural(self, natural: Coordinates) -> Self:
        return self.from_natural(natural)

    def with_expectation(self, expectation: Coordinates) -> Self:
        return self.from_expectation(expectation, start=self)
