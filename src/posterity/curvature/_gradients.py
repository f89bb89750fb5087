"""Per-example gradients of one parameter in the cheapest exact form, and the sums that are taken of them.

A gradient is indexed by a root r (a direction in output space) and an example n. None of these forms is larger than
it must be: a layer that meets each example once has rank-one gradients, an embedding touches a few rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


class Gradient(ABC):
    """Gradients G_rn of one parameter for roots r = 1..R and examples n = 1..B."""

    @abstractmethod
    def total(self) -> Tensor:
        """Σ_rn G_rn, flat."""

    @abstractmethod
    def squares(self) -> Tensor:
        """Σ_rn G_rn², flat."""

    @abstractmethod
    def norms(self) -> Tensor:
        """‖G_rn‖², (R, B)."""

    def gram(self, variance: Tensor) -> Tensor:
        """⟨G_rn, S ∘ G_sn⟩ for all pairs of roots of the same example, (B, R, R)."""
        rows = self.rows().transpose(0, 1)  # (B, R, numel)
        return (rows * variance.flatten()) @ rows.mT

    @abstractmethod
    def cross(self, other: Self, variance: Tensor) -> Tensor:
        """⟨G_rn, S ∘ G'_sm⟩ between the examples of two batches, (B, B', R, R')."""

    @abstractmethod
    def rows(self) -> Tensor:
        """The gradients written out, (R, B, numel)."""


@dataclass(frozen=True)
class Outer(Gradient):
    """G_rn = b_rn a_nᵀ for a weight (out, in)."""

    b: Tensor  # (R, B, out)
    a: Tensor  # (B, in)

    def total(self) -> Tensor:
        return (self.b.sum(0).T @ self.a).flatten()

    def squares(self) -> Tensor:
        return (self.b.square().sum(0).T @ self.a.square()).flatten()

    def norms(self) -> Tensor:
        return self.b.square().sum(-1) * self.a.square().sum(-1)

    def cross(self, other: Self, variance: Tensor) -> Tensor:
        s = variance.reshape(-1, 1, self.a.shape[-1])
        between = (s * self.a) @ other.a.T  # (out, B, B')
        left = torch.einsum("obc,rbo->bcro", between, self.b)
        return torch.einsum("bcro,sco->bcrs", left, other.b)

    def rows(self) -> Tensor:
        return (self.b.unsqueeze(-1) * self.a.unsqueeze(-2)).flatten(2)


@dataclass(frozen=True)
class GradientRows(Gradient):
    """G_rn written out: biases, scales, and weights that meet each example at many positions."""

    values: Tensor  # (R, B, numel)

    def total(self) -> Tensor:
        return self.values.sum((0, 1))

    def squares(self) -> Tensor:
        return self.values.square().sum((0, 1))

    def norms(self) -> Tensor:
        return self.values.square().sum(-1)

    def cross(self, other: Self, variance: Tensor) -> Tensor:
        return torch.einsum("rbp,scp->bcrs", self.values * variance.flatten(), other.values)

    def rows(self) -> Tensor:
        return self.values


@dataclass(frozen=True)
class Lookup(Gradient):
    """The gradient of an embedding (rows, width): nothing but the rows that an example looks up.

    `b` holds, at the first position where an example meets a row, the sum over all positions where it does; zero
    at the others. So every row of an example occurs exactly once.
    """

    index: Tensor  # (B, T)
    b: Tensor  # (R, B, T, width)
    shape: torch.Size  # (rows, width)

    def total(self) -> Tensor:
        return self._add_rows(self.b)

    def squares(self) -> Tensor:
        return self._add_rows(self.b.square())

    def _add_rows(self, b: Tensor) -> Tensor:
        return b.new_zeros(self.shape).index_add_(0, self.index.flatten(), b.sum(0).flatten(0, 1)).flatten()

    def norms(self) -> Tensor:
        return self.b.square().sum((-2, -1))

    def gram(self, variance: Tensor) -> Tensor:
        b = self.b.transpose(0, 1)  # (B, R, T, width)
        return (b * variance[self.index].unsqueeze(1)).flatten(2) @ b.flatten(2).mT

    def cross(self, other: Self, variance: Tensor) -> Tensor:
        same = (self.index[:, None, :, None] == other.index[None, :, None, :]).to(self.b)  # (B, B', T, T')
        matched = torch.einsum("bctu,scud->bcstd", same, other.b)
        return torch.einsum("rbtd,bcstd->bcrs", self.b * variance[self.index], matched)

    def rows(self) -> Tensor:
        roots, examples = self.b.shape[:2]
        total = self.b.new_zeros(roots, examples, *self.shape)
        index = self.index[None, :, :, None].expand(roots, -1, -1, self.shape[1])
        return total.scatter_add_(2, index, self.b).flatten(2)
