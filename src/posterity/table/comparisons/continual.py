"""Three ways to keep the past, which for linear regression are one: EWC, the K-prior and FROMP."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posterity.adaptation import ewc, fromp, k_prior, remember
from posterity.algorithms import linear_regression
from posterity.families import Gaussian
from posterity.likelihoods import GaussianLikelihood
from posterity.posterior import Diagonal, Full, Posterior
from posterity.table.comparisons._data import furthest, normal

D, PRIOR, NOISE = 4, 0.7, 3.0  # weights, precision of the prior, precision of the noise


def ewc_kprior_fromp() -> float:
    """EWC, the K-prior and FROMP for linear regression.

    Posterior: q = N(m, S⁻¹), full, after an exact step of the rule on old data (X, y) with noise precision β.

    EWC keeps q itself. The K-prior keeps the predictions at all old inputs, and the prior S₀. FROMP keeps the
    predictions at as many old inputs Z as there are weights, and their covariance Z S⁻¹ Zᵀ. Predictions are linear in
    θ, so with Δ = θ − m all three are −log q up to a constant:

        ½ ΔᵀSΔ  =  ½ β |XΔ|² + ½ ΔᵀS₀Δ  =  ½ (ZΔ)ᵀ (Z S⁻¹ Zᵀ)⁻¹ ZΔ.

    A step of the rule on new data that starts from any of them is the exact posterior of old and new data together:

        S ← S + β X'ᵀX',   m ← m − S⁻¹ β X'ᵀ(X'm − y').
    """
    old, new = [(normal(12, D, seed=seed), normal(12, seed=seed + 10)) for seed in (0, 1)]
    q, joint = _learnt(*old), _learnt(*(torch.cat(parts) for parts in zip(old, new, strict=True)))
    model = nn.Linear(D, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(q.mean[None])
    mean = {"weight": q.mean[None].clone()}
    posterior = Posterior.of(
        model,
        Full(mean, q.precision),
        prior=Diagonal.isotropic(mean, PRIOR),
        n=12,
        ess=12,
        likelihood=GaussianLikelihood(NOISE),
    )
    memory = remember(model, (old[0], old[1][:, None]))
    some = remember(model, (old[0][:D], old[1][:D, None]))
    penalties = ewc(posterior), k_prior(model, posterior, memory), fromp(model, [some], posterior, jitter=0.0)
    with torch.no_grad():
        model.weight.copy_(joint.mean[None])
    away, pairs = joint.mean - q.mean, []
    gradient = NOISE * new[0].T @ (new[0] @ joint.mean - new[1])  # of the new data, where the penalty balances it
    for penalty in penalties:
        value = penalty.total(model)
        (pull,) = torch.autograd.grad(value, [model.weight])
        pairs += [(value.detach(), 0.5 * away @ q.precision @ away), (pull[0], q.precision @ away)]
        pairs.append((pull[0], -gradient))
    return furthest(*pairs)


def _learnt(inputs: Tensor, targets: Tensor) -> Gaussian:
    return linear_regression(inputs, targets, prior_precision=PRIOR, noise_precision=NOISE)
