"""First-order methods: Gaussians with fixed or diagonal covariance, the delta method."""

from __future__ import annotations

import torch

from posterity.algorithms._base import Algorithm, fixed, vague
from posterity.families import DiagonalGaussian, FixedGaussian
from posterity.gradients import Delta, DropoutMasks, SquaredGradients
from posterity.rule import BayesianLearningRule


def gradient_descent(lr: float = 0.1) -> Algorithm[FixedGaussian]:
    """Gradient descent.

    Posterior: q = N(m, I) with only the mean learnt, so that T = θ, λ = m and μ = m.

    Its base measure is not constant, log h = −½θᵀθ + const, and ∇_μ E_q[log h] = −m cancels the decay of the rule:
    λ ← (1 − ρ)λ − ρ∇_μ E_q[ℓ + log h] = m − ρ∇_m E_q[ℓ]. The delta method, E_q[ℓ] ≈ ℓ(m), leaves

        m ← m − ρ ∇ℓ(m).

    Args:
        lr: ρ.
    """
    return Algorithm(fixed, BayesianLearningRule(Delta(), lr=lr))


def sgd(lr: float = 0.1) -> Algorithm[FixedGaussian]:
    """Stochastic gradient descent.

    Posterior: q = N(m, I) with only the mean learnt.

    Gradient descent, where each step sees the loss through another minibatch (`DataLoss.minibatches`, which scales
    the examples by N/B and leaves the regulariser alone). With the unbiased gradient ĝ ≈ ∇ℓ(m),

        m ← m − ρ ĝ.

    Args:
        lr: ρ.
    """
    return gradient_descent(lr)


def momentum(lr: float = 0.1, beta: float = 0.9) -> Algorithm[FixedGaussian]:
    """Stochastic gradient descent with momentum.

    Posterior: q = N(m, I) with only the mean learnt.

    Heavy-ball momentum adds β(λ_t − λ_{t−1}) to the step that SGD takes, and λ = m:

        v ← β v + ĝ,   m ← m − ρ v.

    Args:
        lr: ρ.
        beta: β.
    """
    return sgd(lr).but(momentum=beta)


def rmsprop(lr: float = 0.01, beta: float = 0.99, eps: float = 1e-8) -> Algorithm[DiagonalGaussian]:
    """RMSprop.

    Posterior: q = N(m, diag(s)⁻¹), which starts without any precision.

    The rule reads s ← (1 − ρ)s + ρE_q[diag ∇²ℓ], m ← m − ρE_q[∇ℓ]/s. The delta method evaluates at the mean; ĝ² of
    the (minibatch) gradient stands for the Hessian; the scale moves by a slower step, 1 − β; and the square root
    makes up for ĝ² growing with the square of the loss where a Hessian grows with the loss:

        s ← β s + (1 − β) ĝ²,   m ← m − ρ ĝ / (√s + ε).

    Args:
        lr: ρ, of the mean.
        beta: β.
        eps: ε.
    """
    gradient = Delta(SquaredGradients())
    return Algorithm(vague, BayesianLearningRule(gradient, lr=lr, slow_scale=beta, square_root=eps))


def adam(
    lr: float = 0.001, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
) -> Algorithm[DiagonalGaussian]:
    """Adam.

    Posterior: q = N(m, diag(s)⁻¹), which starts without any precision.

    RMSprop (delta method, squared gradients, slow scale, square root) with two more: heavy-ball momentum in the
    natural parameter of the mean, v ← β₁v + ĝ, and debiasing, which divides each running sum by the sum of its
    weights, so that v̂ and ŝ are averages from the first step on:

        v̂ = Σ β₁ᵏ ĝ_{t−k} / Σ β₁ᵏ,   ŝ = Σ β₂ᵏ ĝ²_{t−k} / Σ β₂ᵏ,   m ← m − ρ v̂ / (√ŝ + ε).

    Args:
        lr: ρ, of the mean.
        betas: β₁ of the momentum and β₂ of the scale.
        eps: ε.
    """
    return rmsprop(lr, betas[1], eps).but(momentum=betas[0], debias=True)


def adamw(
    lr: float = 0.001,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.01,
) -> Algorithm[DiagonalGaussian]:
    """AdamW.

    Posterior: q = N(m, diag(s)⁻¹), which starts without any precision.

    Adam for the data, while the Gaussian prior N(0, 1/δ) acts on the mean alone and unscaled (decoupled):

        m ← (1 − ρδ) m − ρ v̂ / (√ŝ + ε).

    Args:
        lr: ρ, of the mean.
        betas: β₁ of the momentum and β₂ of the scale.
        eps: ε.
        weight_decay: δ.
    """
    return adam(lr, betas, eps).but(decay=weight_decay)


def dropout(
    lr: float = 0.1, keep: float = 0.5, masks: int | None = 1, generator: torch.Generator | None = None
) -> Algorithm[FixedGaussian]:
    """Dropout.

    Posterior: for every weight (or unit) a mixture of a slab N(m, 1) and a spike at zero, with a fixed weight π of
    the slab.

    The natural gradient of the slab is the expectation given that the slab was chosen, E[∇ⱼℓ | zⱼ = 1], which is
    E[zⱼ/π ∇ⱼℓ]. The delta method in the slab and a random mask z for the spikes of all weights give, with the
    convention of torch (kept weights are divided by π),

        m ← m − ρ z/π ∘ ∇ℓ(z/π ∘ m),   zⱼ ~ Bernoulli(π).

    Args:
        lr: ρ.
        keep: π, the probability that a weight is kept.
        masks: Masks a step; None takes the expectation over all of them.
        generator: Source of randomness; torch's own when left out.
    """
    return Algorithm(fixed, BayesianLearningRule(DropoutMasks(keep, masks, generator), lr=lr))
