"""Dropout masks: an expectation over which coordinates of θ are kept."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from posterity.errors import expected, require, require_whole
from posterity.families import Bernoulli, Coordinates, FixedGaussian
from posterity.gradients._base import AnyFamily, Estimator, at_points, values_at
from posterity.gradients.losses import AnyLoss, as_function


@dataclass(frozen=True)
class DropoutMasks(Estimator):
    """∇_μ E_q[ℓ] ≈ E_z[z/π ∘ ∇ℓ(z/π ∘ m)], zⱼ ~ Bernoulli(π): spike-and-slab weights, the delta method in the slab.

    The division by the keep probability π follows `torch.nn.Dropout`. It is also what the natural gradient of the
    slab asks for: E_z[zⱼ/π ∇ⱼℓ] = E_z[∇ⱼℓ | zⱼ = 1].

    Args:
        keep: The keep probability π.
        samples: Number of masks; None visits all 2ᵈ of them.
        generator: Source of randomness; torch's own when left out.
    """

    keep: float = 0.5
    samples: int | None = 1
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        require(0.0 < self.keep <= 1.0, "keep", "a probability above 0", self.keep)
        if self.samples is not None:
            require_whole("samples", self.samples)

    def __call__(self, q: AnyFamily, loss: AnyLoss) -> Coordinates:
        mean, masks, weights = self._masks(q)
        gradients = at_points(torch.func.grad(as_function(loss)), masks * mean)
        return (torch.einsum("p,p...->...", weights, masks * gradients),)

    def expectation(self, q: AnyFamily, loss: AnyLoss) -> Tensor:
        mean, masks, weights = self._masks(q)
        return torch.einsum("p,p...->...", weights, values_at(loss, masks * mean))

    def _masks(self, q: AnyFamily) -> tuple[Tensor, Tensor, Tensor]:
        """m, masks z/π (P, *batch, d) and their weights (P,)."""
        if not isinstance(q, FixedGaussian):
            raise expected("DropoutMasks", "a FixedGaussian q (the slab)", type(q).__name__)
        mean = q.mean
        if self.samples is not None:
            masks = mean.new_empty(self.samples, *mean.shape).bernoulli_(self.keep, generator=self.generator)
            return mean, masks / self.keep, mean.new_full((self.samples,), 1.0 / self.samples)
        words = Bernoulli(torch.zeros_like(mean)).support()
        kept = words.sum(-1)
        weights = self.keep**kept * (1.0 - self.keep) ** (mean.shape[-1] - kept)
        return mean, words.reshape(len(words), *[1] * (mean.ndim - 1), -1) / self.keep, weights
