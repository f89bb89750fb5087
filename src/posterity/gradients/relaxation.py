"""The Gumbel relaxation of random signs, which lets gradients through."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from posterity.errors import expected, require_positive, require_whole
from posterity.families import Coordinates, SignBernoulli
from posterity.gradients._base import AnyFamily, Estimator, at_points, values_at
from posterity.gradients.losses import AnyLoss, as_function


@dataclass(frozen=True)
class RelaxedBernoulli(Estimator):
    """∇_μ E_q[ℓ] ≈ ∇ℓ(w) ∘ ∂w/∂μ at soft signs w = tanh((λ + δ)/T), δ = ½ log u/(1−u), u uniform.

        ∂w/∂μ = (1 − w²) / (T (1 − μ²)),   μ = tanh λ

    Biased for T > 0, where w is not quite a sign; as T falls the bias does too, and the variance grows.

    Args:
        samples: Number of soft signs to average over.
        temperature: T, of the relaxation (not the rule's).
        generator: Source of randomness; torch's own when left out.

    References:
        Meng, Bachmann and Khan, "Training binary neural networks using the Bayesian learning rule", 2020.
    """

    samples: int = 1
    temperature: float = 1.0
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        require_whole("samples", self.samples)
        require_positive("temperature", self.temperature)

    def __call__(self, q: AnyFamily, loss: AnyLoss) -> Coordinates:
        natural, arguments = self._soft(q)
        gradients = at_points(torch.func.grad(as_function(loss)), arguments.tanh())
        # 1 − tanh² = cosh⁻² does not cancel where signs are nearly certain, and its logarithm does not overflow.
        slope = (2.0 * (_log_2cosh(natural) - _log_2cosh(arguments))).exp() / self.temperature
        return ((slope * gradients).mean(0),)

    def expectation(self, q: AnyFamily, loss: AnyLoss) -> Tensor:
        _, arguments = self._soft(q)
        return values_at(loss, arguments.tanh()).mean(0)

    def _soft(self, q: AnyFamily) -> tuple[Tensor, Tensor]:
        """λ, and (λ + δ)/T for every sample."""
        if not isinstance(q, SignBernoulli):
            raise expected("RelaxedBernoulli", "a SignBernoulli q", type(q).__name__)
        natural = q.natural[0]
        shape = (self.samples, *natural.shape)
        uniform = torch.rand(shape, dtype=natural.dtype, device=natural.device, generator=self.generator)
        tiny = torch.finfo(natural.dtype).tiny
        return natural, (natural + 0.5 * torch.logit(uniform, eps=tiny)) / self.temperature


def _log_2cosh(x: Tensor) -> Tensor:
    return torch.logaddexp(x, -x)
