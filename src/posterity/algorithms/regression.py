"""Newton's method and what it finds: Laplace's approximation, linear regression."""

from __future__ import annotations

import torch
from torch import Tensor

from posterity.algorithms._base import Algorithm, unit
from posterity.families import Gaussian
from posterity.gradients import AnyLoss, Delta, LinearLoss
from posterity.likelihoods import GaussianLikelihood
from posterity.rule import BayesianLearningRule


def newton(lr: float = 1.0) -> Algorithm[Gaussian]:
    """Newton's method.

    Posterior: q = N(m, S⁻¹) with a full precision.

    For Gaussians the rule reads S ← (1 − ρ)S + ρE_q[∇²ℓ], m ← m − ρS⁻¹E_q[∇ℓ]. The delta method evaluates both
    expectations at the mean, and ρ = 1 forgets the old precision:

        S ← ∇²ℓ(m),   m ← m − S⁻¹ ∇ℓ(m).

    Args:
        lr: ρ; below 1 the Hessian is averaged over the steps.
    """
    return Algorithm(unit, BayesianLearningRule(Delta(), lr=lr))


def laplace(theta: Tensor, loss: AnyLoss, steps: int = 100, tolerance: float = 1e-12) -> Gaussian:
    """Laplace's approximation.

    Posterior: q = N(m, S⁻¹) with a full precision.

    With the delta method a fixed point of the rule has E_q[∇ℓ] ≈ ∇ℓ(m*) = 0 and S = E_q[∇²ℓ] ≈ ∇²ℓ(m*), which is
    Laplace's approximation at the mode m*. Newton's method (ρ = 1) finds it:

        ∇ℓ(m*) = 0,   S = ∇²ℓ(m*).

    Args:
        theta: Where to start.
        loss: The total loss, prior included.
        steps: Newton steps, at most.
        tolerance: When to stop, as in `BayesianLearningRule.run`.
    """
    return newton().run(theta, loss, steps, tolerance=tolerance)


def linear_regression(
    inputs: Tensor, targets: Tensor, *, prior_precision: float = 1.0, noise_precision: float = 1.0
) -> Gaussian:
    """Ridge regression, or Bayesian linear regression.

    Posterior: q = N(m, S⁻¹) with a full precision; prior N(0, 1/δ), noise N(0, 1/β).

    The loss is quadratic, so that ∇_μ E_q[ℓ] does not depend on q and the delta method is exact. One step with ρ = 1
    from any start gives

        S = δI + βXᵀX,   S m = βXᵀy,

    whose mean is ridge regression with penalty δ/β.

    Args:
        inputs: X (n, d).
        targets: y (n,).
        prior_precision: δ.
        noise_precision: β.
    """
    loss = LinearLoss(inputs=inputs, targets=targets, likelihood=GaussianLikelihood(noise_precision))
    unit = torch.eye(inputs.shape[-1], dtype=inputs.dtype, device=inputs.device)
    prior = Gaussian(torch.zeros_like(inputs[0]), prior_precision * unit)
    return BayesianLearningRule(Delta(), lr=1.0, prior=prior).step(prior, loss)
