"""Ridge regression, or Bayesian linear regression: quadratic losses, for which one step is exact."""

import torch
from torch import Tensor

from posterity.families import Gaussian
from posterity.gradients import Delta, LinearLoss
from posterity.likelihoods import GaussianLikelihood
from posterity.rule import BayesianLearningRule


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
