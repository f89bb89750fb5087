"""The sums that Kronecker factors are made of: Kronecker products do not add or subtract, these do.

B = Σ w b bᵀ,   N A = Σ w a aᵀ
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posterity.adaptation.penalties.quadratic import gaussian_of
from posterity.adaptation.penalties.residual_curvature import by_weight
from posterity.curvature import kronecker_ggn
from posterity.likelihoods import Likelihood
from posterity.posterior import Kronecker, Memory, Posterior
from posterity.trees import evaluating

Blocks = Mapping[str, tuple[Tensor, ...]]


@dataclass(frozen=True, eq=False)
class FactorSums:
    """Σ w b bᵀ and, for parameters with two factors, Σ w a aᵀ.

    Args:
        sums: For each parameter.
        mass: Σ w, the number of examples in the sums.
    """

    sums: Blocks
    mass: float

    @classmethod
    def of(cls, posterior: Posterior) -> FactorSums:
        """The sums that a Kronecker posterior represents, untempered."""
        gaussian = gaussian_of(posterior.structure)
        assert isinstance(gaussian, Kronecker)
        scale, n = posterior.temperature, posterior.n
        return cls({name: (scale * b, *(n * a for a in rest)) for name, (b, *rest) in gaussian.factors.items()}, n)

    @classmethod
    def over(cls, model: nn.Module, memory: Memory | None, likelihood: Likelihood) -> FactorSums:
        """The sums over weighted examples at the model's weights, for all trainable parameters."""
        total = cls({}, 0.0)
        for weight, data in () if memory is None else by_weight(memory):
            with evaluating(model):
                found = kronecker_ggn(model, data, likelihood)
            mass = weight * data.n
            total = total.plus(
                cls({name: (weight * b, *(mass * a for a in rest)) for name, (b, *rest) in found.items()}, mass)
            )
        return total

    def plus(self, other: FactorSums, sign: float = 1.0) -> FactorSums:
        """The sums over both."""
        sums = dict(self.sums)
        for name, theirs in other.sums.items():
            mine = sums.get(name, tuple(torch.zeros_like(t) for t in theirs))
            sums[name] = tuple(a + sign * b.to(a) for a, b in zip(mine, theirs))
        return FactorSums(sums, self.mass + sign * other.mass)

    def scaled(self, factor: float) -> FactorSums:
        """The sums times a number, as of examples that count for so much each."""
        return FactorSums(
            {name: tuple(factor * t for t in sums) for name, sums in self.sums.items()}, factor * self.mass
        )

    def less(self, other: FactorSums) -> FactorSums:
        """The sums without those of the other."""
        return self.plus(other, -1.0)

    def block(self, name: str, like: Tensor) -> tuple[tuple[Tensor, ...], float]:
        """The sums of a parameter of this shape, with zeros for outputs that are new; nothing if it is another."""
        sizes = (like.numel(),) if like.ndim < 2 else (len(like), like.shape[1:].numel())
        found = self.sums.get(name, ())
        known = tuple(map(len, found))
        if known[1:] != sizes[1:] or len(known) != len(sizes) or known[0] > sizes[0]:
            return tuple(like.new_zeros(size, size) for size in sizes), 0.0
        extra = sizes[0] - known[0]
        return (F.pad(found[0], (0, extra, 0, extra)), *found[1:]), self.mass
