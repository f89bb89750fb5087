"""Plain observations: all rows share one parameter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from torch import Tensor

from posterity.families import Family
from posterity.graph._factor import Beliefs, Evaluation, Factor
from posterity.graph.emissions import Emission


@dataclass(frozen=True)
class Observed(Factor):
    """Σ_n log p(x_n | θ): conjugate Bayes.

        value = Σ_n ⟨t(x_n), μ⟩ + c(x_n),     to θ: Σ_n t(x_n)

    Args:
        parameter: Name of θ, of the emission's conjugate family.
        emission: The observations.
    """

    parameter: str
    emission: Emission

    @property
    def size(self) -> int:
        return len(self.emission)

    @property
    def neighbours(self) -> Mapping[str, type[Family]]:
        return {self.parameter: self.emission.family}

    def take(self, rows: Tensor) -> Self:
        return replace(self, emission=self.emission.take(rows))

    def evaluate(self, q: Beliefs) -> Evaluation:
        energies = self.emission.energies(tuple(block.unsqueeze(0) for block in q[self.parameter].expectation))

        def to_parameter() -> tuple[Tensor, ...]:
            everyone = self.emission.present.to(energies).unsqueeze(-1)
            return tuple(block.squeeze(0) for block in self.emission.message(everyone))

        return Evaluation(energies.sum, {self.parameter: to_parameter})
