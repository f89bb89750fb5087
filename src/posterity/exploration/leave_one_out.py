"""The expected reduction in leave-one-out loss: the influence that an unseen example would have.

Leave-one-out loss over the labelled examples j estimates the loss to come. If x were labelled y, one Newton step says

    f_j ← f_j − C_xjᵀ (I + Λ_x V_x)⁻¹ e_x(y),    V_j ← V_j − C_xjᵀ (I + Λ_x V_x)⁻¹ Λ_x C_xj,    C_xj = J_x Σ J_jᵀ

and with them each j's loss without itself changes. The score is by how much it falls on average over j and over the
labels y that the model expects. Exact for linear regression.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posterity.curvature import kernel, prediction_covariance
from posterity.errors import Undefined
from posterity.exploration.question import Question
from posterity.inputs import take
from posterity.likelihoods import BernoulliLikelihood, CategoricalLikelihood, GaussianLikelihood, Likelihood
from posterity.memory import Dual
from posterity.memory.perturbation import change_of_outputs, whether_to_deflate
from posterity.posterior import FittedModel

CHUNK = 32


def score(question: Question) -> Tensor:
    """By how much each example of the pool is expected to lower the leave-one-out loss of the labelled ones."""
    known = question.known("leave_one_out")
    trained = question.trained
    labelled = FittedModel.of(trained.model, trained.posterior, known)
    found = []
    with trained.at_mean():
        parts = [(batch, Dual.of(labelled, batch)) for batch in labelled.batches("labelled")]
        for batch in trained.batches("leave one out"):
            for start in range(0, len(batch), CHUNK):
                inputs = take(batch.inputs, slice(start, start + CHUNK))
                f = trained.outputs(inputs).double()
                v = prediction_covariance(trained.model, inputs, trained.covariance).double()
                fallen = torch.zeros(len(f), dtype=torch.float64, device=f.device)
                for others, dual in parts:
                    c = kernel(trained.model, inputs, others.inputs, trained.covariance).double()
                    fallen += reduction(dual, f, v, c) / known.n
                found.append(fallen.cpu())
    return torch.cat(found)


def reduction(dual: Dual, f: Tensor, v: Tensor, c: Tensor) -> Tensor:
    """Σ_j of the expected fall of leave-one-out losses, (B,).

    Args:
        dual: Labelled examples.
        f: Outputs of unseen examples, (B, K).
        v: Their prediction covariance, (B, K, K).
        c: Their covariance with the labelled ones, (B, N, K, K).
    """
    likelihood = dual.likelihood
    curvature = likelihood.curvature(f)
    share = torch.linalg.inv(torch.eye(f.shape[1]).to(f) + curvature @ v)  # (I + ΛV)⁻¹
    variance = dual.variance - torch.einsum("bnki,bkl,bnlj->bnij", c, share @ curvature, c)
    before = _losses(dual, dual.outputs, dual.variance).sum()
    after = torch.zeros_like(f[:, 0])
    for weight, residual in expected_residuals(likelihood, f, v):
        push = torch.einsum("bkl,bl->bk", share, residual)
        moved = dual.outputs - torch.einsum("bnkl,bk->bnl", c, push)
        after += weight * _losses(dual, moved, variance).sum(1)
    return before - after


def _losses(dual: Dual, f: Tensor, v: Tensor) -> Tensor:
    """Leave-one-out losses of the labelled examples with outputs f (..., N, K) and covariances v (..., N, K, K)."""
    likelihood = dual.likelihood
    y = dual.targets.expand(*f.shape[:-2], *dual.targets.shape)
    deflate = whether_to_deflate("auto", dual.trained.posterior)
    change = change_of_outputs(v, likelihood.curvature(f), likelihood.residual(f, y), deflate=deflate)
    return likelihood.loss(f + change, y)


def expected_residuals(likelihood: Likelihood, f: Tensor, v: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The labels that the model expects, as weights (B,) and residuals (B, K): all classes, or points of a cubature.

    The 2K points f ± √K S^½ u_k, S = V + noise, have the mean and covariance of the Gaussian predictive, and so the
    right expectation of whatever is quadratic in y.
    """
    count, k = f.shape
    if isinstance(likelihood, CategoricalLikelihood):
        p = likelihood.mean(f)
        labels = [torch.full((count,), label, device=f.device) for label in range(k)]
        return [(p[:, label], likelihood.residual(f, y)) for label, y in enumerate(labels)]
    if isinstance(likelihood, BernoulliLikelihood) and k == 1:
        p = likelihood.mean(f)[:, 0]
        return [(1 - p, likelihood.residual(f, torch.zeros_like(f))), (p, likelihood.residual(f, torch.ones_like(f)))]
    if isinstance(likelihood, GaussianLikelihood):
        root = torch.linalg.cholesky(v + torch.eye(k).to(v) / likelihood.precision) * math.sqrt(k)
        weight = torch.full((count,), 0.5 / k, dtype=f.dtype, device=f.device)
        return [(weight, likelihood.residual(f, f + s * root[:, :, i])) for i in range(k) for s in (1.0, -1.0)]
    raise Undefined(f"leave_one_out: expected one label or a regression, got {k} {likelihood.name} outputs")
