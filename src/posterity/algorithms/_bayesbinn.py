"""BayesBiNN: the rule for random signs, with the Gumbel relaxation."""

import torch

from posterity.algorithms._base import Algorithm
from posterity.algorithms._bernoulli_rule import bernoulli_rule
from posterity.families import SignBernoulli
from posterity.gradients import RelaxedBernoulli


def bayesbinn(
    lr: float = 0.1, temperature: float = 1.0, samples: int = 1, generator: torch.Generator | None = None
) -> Algorithm[SignBernoulli]:
    """BayesBiNN.

    Posterior: independent signs with λ = ½ log p/(1−p) and μ = tanh λ.

    The rule for random signs, with the Gumbel relaxation for the gradient: soft signs w = tanh((λ + δ)/T), which
    the chain rule differentiates in μ,

        λ ← (1 − ρ)λ − ρ s ∘ ∇ℓ(w),   s = (1 − w²) / (T(1 − μ²)),   δ = ½ log u/(1−u).

    Args:
        lr: ρ.
        temperature: T of the relaxation.
        samples: Number of soft signs a step.
        generator: Source of randomness; torch's own when left out.
    """
    return bernoulli_rule(lr).but(gradient=RelaxedBernoulli(samples, temperature, generator))
