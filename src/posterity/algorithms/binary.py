"""Weights of ±1: Bernoulli posteriors, exact, relaxed, and at their mode."""

from __future__ import annotations

import torch

from posterity.algorithms._base import Algorithm
from posterity.families import SignBernoulli
from posterity.gradients import Delta, Enumeration, RelaxedBernoulli
from posterity.rule import BayesianLearningRule


def bernoulli_rule(lr: float = 0.1) -> Algorithm[SignBernoulli]:
    """The rule for random signs.

    Posterior: independent signs θ ∈ {−1, 1}ᵈ with λ = ½ log p/(1−p) and μ = tanh λ.

    The base measure is constant. The expectation is a finite sum, and nothing is approximated:

        λ ← (1 − ρ)λ − ρ ∇_μ E_q[ℓ],   ∂E_q[ℓ]/∂μⱼ = ½(E_q[ℓ | θⱼ = 1] − E_q[ℓ | θⱼ = −1]).

    Args:
        lr: ρ.
    """
    return Algorithm(SignBernoulli, BayesianLearningRule(Enumeration(), lr=lr))


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


def straight_through(lr: float = 0.1) -> Algorithm[SignBernoulli]:
    """The straight-through estimator (BinaryConnect).

    Posterior: independent signs with λ = ½ log p/(1−p); the latent weights are λ.

    BayesBiNN with the delta method: no noise and T → 0 make w = sign λ, the most probable state, and the factor s
    is taken to be 1. At temperature 0 the entropy is dropped, and with it the decay:

        λ ← λ − ρ ∇ℓ(sign λ).

    Args:
        lr: ρ.
    """
    return bayesbinn(lr).but(gradient=Delta(at="mode"), temperature=0.0)
