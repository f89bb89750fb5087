"""Mixtures: each observation comes from one of K components, which one is unknown."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from posterity.errors import require
from posterity.families import Coordinates, Dirichlet, Family
from posterity.graph._factor import Beliefs, Evaluation, Factor, batch_shape
from posterity.graph.emissions import Emission

_EMPTY = 1e-8  # observations in a component below which it counts as empty


@dataclass(frozen=True)
class MixtureFactor(Factor):
    """Σ_n log p(x_n, z_n | π, θ), with the labels z_n summed out: q(z_n = k) = r_nk.

        r_nk ∝ exp E[log π_k + log p(x_n | θ_k)],     value = Σ_n log Σ_k exp E[log π_k + log p(x_n | θ_k)]
        to π: Σ_n r_nk,     to θ_k: Σ_n r_nk t(x_n)

    A component that no observation belongs to is sent 1e-8 of an average one, so that it stays finite where it has
    no prior.

    Args:
        weights: Name of π, a `Dirichlet`; None for equally frequent components.
        components: Name of θ, with plates (K, ...), of the emission's conjugate family.
        emission: The observations.
    """

    weights: str | None
    components: str
    emission: Emission
    separable = True

    @property
    def size(self) -> int:
        return len(self.emission)

    @property
    def neighbours(self) -> Mapping[str, type[Family]]:
        family = {self.components: self.emission.family}
        return family if self.weights is None else {self.weights: Dirichlet, **family}

    def check(self, q: Mapping[str, Family]) -> None:
        super().check(q)
        if self.weights is None:
            return
        classes = q[self.weights].event_shapes[0][0]
        plates = batch_shape(q[self.components])
        require(plates[:1] == (classes,), f"plates of {self.components!r}", f"({classes}, ...)", plates)

    def take(self, rows: Tensor) -> Self:
        return replace(self, emission=self.emission.take(rows))

    def evaluate(self, q: Beliefs) -> Evaluation:
        responsibilities, log_density = self.responsibilities(q)
        counts = responsibilities.sum(0)

        def to_components() -> tuple[Tensor, ...]:
            sums = self.emission.message(responsibilities)
            empty = counts < _EMPTY
            if not empty.any():
                return sums
            average = self.emission.message(torch.full_like(responsibilities[:, :1], _EMPTY / len(self.emission)))
            return tuple(s + torch.where(empty.reshape(-1, *[1] * (s.ndim - 1)), a, 0.0) for s, a in zip(sums, average))

        messages: dict[str, Callable[[], Coordinates]] = {self.components: to_components}
        if self.weights is not None:
            messages[self.weights] = lambda: (counts,)
        return Evaluation(log_density.sum, messages)

    def responsibilities(self, q: Beliefs) -> tuple[Tensor, Tensor]:
        """r (N, K), and log Σ_k exp E[log π_k + log p(x_n | θ_k)], (N,); both zero where x_n is missing."""
        energies = self.emission.energies(q[self.components].expectation)
        logits = energies + (-math.log(energies.shape[-1]) if self.weights is None else q[self.weights].expectation[0])
        log_density = logits.logsumexp(-1)
        responsibilities = torch.sub(logits, log_density.unsqueeze(-1)).exp_()
        there = self.emission.present
        return torch.where(there.unsqueeze(-1), responsibilities, 0.0), torch.where(there, log_density, 0.0)
