"""The contract of a conditional exponential family: mixtures, with natural gradients in the joint of θ and z."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from posterity.families._base import Coordinates, Family


class ConditionalFamily(ABC):
    """q(θ) = ∫ q(θ | z) q(z) dz, where q(z) and q(θ | z) are exponential families and q(θ) is not.

    There is no closed log-partition and no closed entropy. The joint q(θ, z) still has natural parameters, those of
    the mixing family followed by those of the conditional, and a Fisher matrix that is block-diagonal in the two, so
    natural gradients are gradients in the expectation parameters, block by block (minimal conditional exponential
    family):

        F⁻¹∇_λ L = ( ∇_{E[T(z)]} L at fixed q(θ | z),   ∇_{E[T(θ, z)]} L at fixed q(z) )

    Attributes:
        mixing: q(z).
        conditional: The conditional's parameters, as a family that has the same coordinates: one member for each
            state of a discrete z, or the conditional at z = 1 for a scale.

    References:
        Lin, Khan and Schmidt, "Fast and simple natural-gradient variational inference with mixture of
        exponential-family approximations", 2019.
    """

    mixing: Family
    conditional: Family
    theta_dims: int = 1

    def __init__(self, mixing: Family, conditional: Family) -> None:
        self.mixing, self.conditional = mixing, conditional

    def with_parts(self, mixing: Family, conditional: Family) -> Self:
        """The member with this q(z) and this q(θ | z)."""
        return type(self)(mixing, conditional)

    @abstractmethod
    def exposure(self) -> tuple[Tensor, ...]:
        """∂E[T(θ, z)]/∂(expectation of `conditional`), a factor for each conditional block: how often it is seen."""

    @abstractmethod
    def log_prob(self, theta: Tensor) -> Tensor:
        """log q(θ), z integrated out."""

    @abstractmethod
    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n draws of θ, (n, *batch, *event)."""

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """E_q[θ]."""

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """Element-wise variance of θ."""

    @property
    def natural(self) -> Coordinates:
        """Natural parameters of the joint: the mixing's, then the conditional's."""
        return self.mixing.natural + self.conditional.natural

    @property
    def expectation(self) -> Coordinates:
        """Expectation parameters of the joint, (E[T(z)], E[T(θ, z)])."""
        seen = zip(self.exposure(), self.conditional.expectation, strict=True)
        return self.mixing.expectation + tuple(share * block for share, block in seen)

    def with_natural(self, natural: Coordinates) -> Self:
        """The member with these natural parameters."""
        cut = len(self.mixing.event_dims)
        return self.with_parts(self.mixing.with_natural(natural[:cut]), self.conditional.with_natural(natural[cut:]))

    def with_expectation(self, expectation: Coordinates) -> Self:
        """The member with these expectation parameters."""
        cut = len(self.mixing.event_dims)
        mixing = self.mixing.with_expectation(expectation[:cut])
        seen = zip(self.with_parts(mixing, self.conditional).exposure(), expectation[cut:], strict=True)
        return self.with_parts(mixing, self.conditional.with_expectation(tuple(block / share for share, block in seen)))

    def natural_gradient(self, objective: Callable[[Self], Tensor]) -> Coordinates:
        """F⁻¹∇_λ of a differentiable objective of q, summed over the batch, by automatic differentiation.

        For an expectation E_q[f] of a fixed f and a mixture of K components this is E_k[f] − E_K[f] for the log-odds
        and ∇_{μ_k} E_k[f] for component k, for any weight of it.
        """
        cut = len(self.mixing.event_dims)
        start = self.mixing.expectation + self.conditional.expectation
        with torch.enable_grad():
            leaves = tuple(block.detach().clone().requires_grad_() for block in start)
            mixing = self.mixing.with_expectation(leaves[:cut])
            member = self.with_parts(mixing, self.conditional.with_expectation(leaves[cut:]))
            slopes = torch.autograd.grad(objective(member).sum(), leaves, materialize_grads=True)
        seen = zip(self.exposure(), slopes[cut:], strict=True)
        return slopes[:cut] + tuple(slope / share for share, slope in seen)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.mixing!r}, {self.conditional!r})"
