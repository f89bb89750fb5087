"""Observations of exponential families: log p(x | θ) = ⟨t(x), T(θ)⟩ + c(x), with T that of the conjugate family.

An emission holds data and provides t and c. Everything message passing needs from it are two products with the matrix
of all t(x_n): energies ⟨t(x_n), μ_k⟩ on the way up, weighted sums Σ_n r_nk t(x_n) on the way down.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from posterity.batches import one_tensor
from posterity.errors import require
from posterity.families import Beta, Coordinates, Dirichlet, Family, Gamma, NormalGamma, NormalWishart

_KEPT = 2**25  # numbers t(x) that are kept between sweeps; beyond, they are computed again in chunks
_CHUNK = 2**21


@dataclass(frozen=True)
class Emission:
    """Data, and their statistics for the parameters of each component.

    Args:
        data: Observations (N, ...), with any numbers where `present` is False.
        family: The conjugate family of the components, with plates (K, ...).
        features: t(x), flattened: (n, ...) ↦ (n, F).
        constant: c(x_n), (N,).
        pack: Expectation parameters of K components as a matrix (K, F), aligned with the features.
        unpack: A matrix (K, F) of summed features as natural parameters.
        present: Which observations are there at all, (N,).
        width: F.
    """

    data: Tensor
    family: type[Family]
    features: Callable[[Tensor], Tensor]
    constant: Tensor
    pack: Callable[[Coordinates], Tensor]
    unpack: Callable[[Tensor], Coordinates]
    present: Tensor
    width: int

    def __len__(self) -> int:
        return len(self.data)

    def energies(self, expectation: Coordinates) -> Tensor:
        """E_q[log p(x_n | θ_k)], (N, K); zero for observations that are missing."""
        weights = self.pack(expectation).to(torch.float64)
        fits = weights.ndim == 2 and weights.shape[1] == self.width
        what, wanted = f"parameters of {self.family.__name__}", f"{self.width} for each component, as the data have"
        require(fits, what, wanted, tuple(weights.shape[1:]))
        each = torch.cat([features @ weights.mT for features in self._features()])
        each += self.constant.unsqueeze(-1)
        return each

    def message(self, responsibilities: Tensor) -> Coordinates:
        """Σ_n r_nk t(x_n), for r (N, K)."""
        start, total = 0, responsibilities.new_zeros(responsibilities.shape[-1], self.width)
        for features in self._features():
            total += responsibilities[start : start + len(features)].mT @ features
            start += len(features)
        return self.unpack(total)

    def take(self, rows: Tensor) -> Self:
        """Some of the observations."""
        return replace(self, data=self.data[rows], constant=self.constant[rows], present=self.present[rows])

    @cached_property
    def _complete(self) -> bool:
        return bool(self.present.all())

    @cached_property
    def _kept(self) -> Tensor | None:
        return self._of(self.data, self.present) if len(self) * self.width <= _KEPT else None

    def _features(self) -> Iterator[Tensor]:
        if self._kept is not None:
            yield self._kept
            return
        rows = max(1, _CHUNK // self.width)
        for data, present in zip(self.data.split(rows), self.present.split(rows)):
            yield self._of(data, present)

    def _of(self, data: Tensor, present: Tensor) -> Tensor:
        features = self.features(data)
        return features if self._complete else torch.where(present.unsqueeze(-1), features, 0.0)


def gaussian(x: Tensor, *, jitter: float = 0.0, mask: Tensor | None = None) -> Emission:
    """x ~ N(m, Λ⁻¹) with a full precision; components are `NormalWishart`.

        t(x) = (½, −½xxᵀ, x, −½),   c = −(d/2) log 2π

    Args:
        x: (N, d).
        jitter: Variance with which each observation is smeared, xxᵀ + jitter·I: no component can shrink to a point.
        mask: Which rows are observed, (N,).
    """
    x, present = _observed(x, mask)
    require(jitter >= 0.0, "jitter", "a variance >= 0", jitter)
    d = x.shape[-1]
    upper = torch.triu_indices(d, d, device=x.device)
    twice = torch.where(upper[0] == upper[1], 1.0, 2.0).to(x)
    smear = jitter * (upper[0] == upper[1]).to(x)

    def features(rows: Tensor) -> Tensor:
        half = x.new_full((len(rows), 1), 0.5)
        return torch.cat((half, -0.5 * (rows[:, upper[0]] * rows[:, upper[1]] + smear), rows, -half), -1)

    def pack(expectation: Coordinates) -> Tensor:
        log_det, precision, weighted, quadratic = expectation
        require(weighted.shape[-1] == d, "dimensions of NormalWishart", f"{d}, as the data have", weighted.shape[-1])
        triangle = twice * precision[..., upper[0], upper[1]]
        return torch.cat((log_det.unsqueeze(-1), triangle, weighted, quadratic.unsqueeze(-1)), -1)

    def unpack(total: Tensor) -> Coordinates:
        log_det, triangle, weighted, quadratic = total.split([1, len(twice), d, 1], -1)
        matrix = total.new_empty(*total.shape[:-1], d, d)
        matrix[..., upper[0], upper[1]] = matrix[..., upper[1], upper[0]] = triangle
        return log_det.squeeze(-1), matrix, weighted, quadratic.squeeze(-1)

    constant = -0.5 * d * math.log(2.0 * math.pi) * present.to(x)
    return Emission(x, NormalWishart, features, constant, pack, unpack, present, len(twice) + d + 2)


def diagonal_gaussian(x: Tensor, *, mask: Tensor | None = None) -> Emission:
    """x_j ~ N(m_j, 1/τ_j), independent coordinates; components are `NormalGamma` with plates (K, d).

        t(x_j) = (½, −½x_j², x_j, −½),   c = −½ log 2π

    Args:
        x: (N, d).
        mask: Which entries are observed, (N, d) or (N,).
    """
    x, seen = _entries(x, mask)

    def features(rows: Tensor) -> Tensor:
        value, there = rows.unbind(-1)
        return torch.cat((0.5 * there, -0.5 * value**2, value, -0.5 * there), -1)

    constant = -0.5 * math.log(2.0 * math.pi) * seen.sum(-1)
    return _independent(x, seen, NormalGamma, features, constant, blocks=4)


def bernoulli(x: Tensor, *, mask: Tensor | None = None) -> Emission:
    """x_j ∈ {0, 1}, independent bits; components are `Beta` with plates (K, d): t(x_j) = (x_j, 1 − x_j)."""
    x, seen = _entries(x, mask)
    require(bool(((x == 0) | (x == 1)).all()), "bits", "zeros and ones", "other values")
    return _independent(x, seen, Beta, lambda rows: torch.cat((rows[..., 0], rows[..., 1] - rows[..., 0]), -1),
                        torch.zeros_like(x[:, 0]), blocks=2)  # fmt: skip


def poisson(x: Tensor, *, mask: Tensor | None = None) -> Emission:
    """Counts x_j ~ Poisson(θ_j); components are `Gamma` with plates (K, d): t(x_j) = (x_j, −1), c = −log x_j!."""
    x, seen = _entries(x, mask)
    require(bool(((x >= 0) & (x == x.round())).all()), "counts", "whole numbers >= 0", "other values")
    return _independent(x, seen, Gamma, lambda rows: torch.cat((rows[..., 0], -rows[..., 1]), -1),
                        -torch.lgamma(x + 1.0).sum(-1), blocks=2)  # fmt: skip


def categorical(labels: Tensor, classes: int, *, mask: Tensor | None = None) -> Emission:
    """One of V classes; components are `Dirichlet` (K, V): t(x) = one-hot x.

    Args:
        labels: Integers in 0..V−1, (N,).
        classes: V.
        mask: Which are observed, (N,).
    """
    labels = one_tensor(labels)
    row = labels.ndim == 1 and len(labels) > 0 and not labels.is_floating_point()
    require(row, "labels", "integers (N,), at least one", f"{labels.dtype} {tuple(labels.shape)}")
    present = _mask(mask, labels.shape, labels.device)
    seen = torch.where(present, labels.long(), 0)
    require(bool(((seen >= 0) & (seen < classes)).all()), "labels", f"integers in 0..{classes - 1}", "others")

    def features(rows: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(rows, classes).to(torch.float64)

    zeros = torch.zeros(len(labels), dtype=torch.float64, device=labels.device)
    return Emission(seen, Dirichlet, features, zeros, lambda mu: mu[0], lambda total: (total,), present, classes)


def _independent(
    x: Tensor, seen: Tensor, family: type[Family], features: Callable[[Tensor], Tensor], constant: Tensor, blocks: int
) -> Emission:
    """An emission of independent coordinates, with a block of d features for each block of T."""
    d, present = x.shape[-1], (seen > 0).any(-1)
    pair = torch.stack((x, seen), -1)
    return Emission(
        pair, family, features, constant, lambda mu: torch.cat(mu, -1), lambda t: t.split(d, -1), present, blocks * d
    )


def _entries(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The observations with zeros where they are missing, and a one for each that is there."""
    x = one_tensor(x)
    if mask is not None and (rows := one_tensor(mask)).ndim == 1:
        mask = rows.unsqueeze(-1).expand(x.shape)
    x, seen = _observed(x, mask, entries=True)
    return torch.where(seen, x, 0.0), seen.to(x)


def _observed(x: Tensor, mask: Tensor | None, entries: bool = False) -> tuple[Tensor, Tensor]:
    """The data with zeros where masked, and the mask; an error where what is left is not finite."""
    x = one_tensor(x).to(torch.float64)
    require(x.ndim == 2 and x.numel() > 0, "data", "2 axes, at least one row and column", f"shape {tuple(x.shape)}")
    shape = x.shape if entries else x.shape[:1]
    present = _mask(mask, shape, x.device)
    x = torch.where(present if entries else present.unsqueeze(-1), x, 0.0)
    require(bool(torch.isfinite(x).all()), "data", "finite numbers (say with a mask which are missing)", "NaN")
    return x, present


def _mask(mask: Tensor | None, shape: torch.Size, device: torch.device) -> Tensor:
    """Which data are observed; all unless a mask is given."""
    present = torch.ones(shape, dtype=torch.bool, device=device) if mask is None else one_tensor(mask)
    require(present.shape == shape, "mask", f"shape {tuple(shape)}", f"shape {tuple(present.shape)}")
    require(present.dtype == torch.bool, "mask", "True where data are observed", present.dtype)
    return present
