"""The mean field: independent factors from several families, taken as one family."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from posterity.errors import require
from posterity.families._base import Coordinates, Family


class Product(Family):
    """q(θ) = Π_i q_i(θ_i), with θ the flattened factors one after the other (..., Σ sizes).

        λ = (λ_1, λ_2, …),  μ = (μ_1, μ_2, …),  A = ΣA_i

    Args:
        factors: Members with one batch shape, of any families.

    Examples:
        >>> from posterity.families import Gamma, Gaussian
        >>> q = Product(Gaussian.standard(2), Gamma(3.0, 2.0))
        >>> q.mean
        tensor([0.0000, 0.0000, 1.5000], dtype=torch.float64)
    """

    theta_dims = 1

    def __init__(self, *factors: Family) -> None:
        families = len(factors) > 0 and all(isinstance(factor, Family) for factor in factors)
        require(families, "factors", "at least one exponential family", factors)
        batches = [tuple(factor.log_partition().shape) for factor in factors]
        require(len(set(batches)) == 1, "batch shapes of the factors", "one batch shape", batches)
        self.factors = factors
        self.event_dims = tuple(dims for factor in factors for dims in factor.event_dims)
        self._shapes = [f.mean.shape[f.mean.ndim - f.theta_dims :] for f in factors]

    def split(self, theta: Tensor) -> list[Tensor]:
        """θ cut into the variables of the factors, each in its own shape."""
        pieces = theta.split([shape.numel() for shape in self._shapes], -1)
        return [piece.reshape(theta.shape[:-1] + shape) for piece, shape in zip(pieces, self._shapes, strict=True)]

    def join(self, parts: list[Tensor]) -> Tensor:
        """The inverse of `split`."""
        leads = [part.shape[: part.ndim - len(shape)] for part, shape in zip(parts, self._shapes, strict=True)]
        return torch.cat([part.reshape(*lead, -1) for part, lead in zip(parts, leads, strict=True)], -1)

    def _distribute(self, blocks: Coordinates, build: Callable[[Family, Coordinates], Family]) -> Self:
        wanted = f"a tuple of {len(self.event_dims)} tensors"
        require(len(blocks) == len(self.event_dims), "parameters of Product", wanted, blocks)
        remaining = iter(blocks)
        return type(self)(*(build(f, tuple(itertools.islice(remaining, len(f.event_dims)))) for f in self.factors))

    def with_natural(self, natural: Coordinates) -> Self:
        return self._distribute(natural, lambda factor, blocks: factor.with_natural(blocks))

    def with_expectation(self, expectation: Coordinates) -> Self:
        return self._distribute(expectation, lambda factor, blocks: factor.with_expectation(blocks))

    @property
    def natural(self) -> Coordinates:
        return tuple(block for factor in self.factors for block in factor.natural)

    @property
    def expectation(self) -> Coordinates:
        return tuple(block for factor in self.factors for block in factor.expectation)

    def log_partition(self) -> Tensor:
        return torch.stack([factor.log_partition() for factor in self.factors]).sum(0)

    def statistics(self, theta: Tensor) -> Coordinates:
        parts = zip(self.factors, self.split(theta), strict=True)
        return tuple(block for factor, part in parts for block in factor.statistics(part))

    def log_base_measure(self, theta: Tensor) -> Tensor:
        parts = zip(self.factors, self.split(theta), strict=True)
        return torch.stack([factor.log_base_measure(part) for factor, part in parts]).sum(0)

    def expected_log_base_measure(self) -> Tensor:
        return torch.stack([factor.expected_log_base_measure() for factor in self.factors]).sum(0)

    def base_measure_gradient(self) -> Coordinates:
        return tuple(block for factor in self.factors for block in factor.base_measure_gradient())

    def same_family(self, other: object) -> bool:
        return (
            isinstance(other, Product)
            and len(other.factors) == len(self.factors)
            and all(a.same_family(b) for a, b in zip(self.factors, other.factors, strict=True))
        )

    # Sums over the factors keep the digits that a factor's own forms keep.

    def _in_double(self) -> Self:
        return type(self)(*(factor._in_double() for factor in self.factors))

    def _entropy(self) -> Tensor:
        return torch.stack([factor.entropy() for factor in self.factors]).sum(0)

    def _log_density(self, theta: Tensor) -> Tensor:
        parts = zip(self.factors, self.split(theta), strict=True)
        return torch.stack([factor.log_prob(part) for factor, part in parts]).sum(0)

    def _divergence(self, other: Self) -> Tensor:
        pairs = zip(self.factors, other.factors, strict=True)
        return torch.stack([factor.kl(theirs) for factor, theirs in pairs]).sum(0)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        return self.join([factor.sample(n, generator) for factor in self.factors])

    def support(self) -> Tensor:
        states = itertools.product(*(factor.support() for factor in self.factors))
        return torch.stack([self.join(list(state)) for state in states])

    @property
    def mean(self) -> Tensor:
        return self.join([factor.mean for factor in self.factors])

    @property
    def variance(self) -> Tensor:
        return self.join([factor.variance for factor in self.factors])
