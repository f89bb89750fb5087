"""The expected reduction in leave-one-out loss: the influence that an unseen example would have.

Leave-one-out loss over the labelled examples j estimates the loss to come. If x were labelled y, one Newton step gives

    f_j ← f_j − C_xjᵀ (I + Λ_x V_x)⁻¹ e_x(y),    V_j ← V_j − C_xjᵀ (I + Λ_x V_x)⁻¹ Λ_x C_xj,    C_xj = J_x Σ J_jᵀ

and with them each j's loss without itself changes. The score is by how much it falls on average over j and over the
labels y that the model expects. Exact for linear regression.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from posterity.curvature import kernel, prediction_covariance
from posterity.errors import Undefined
from posterity.exploration.question import PoolQuestion
from posterity.inputs import take
from posterity.likelihoods import Likelihood
from posterity.memory import Dual
from posterity.memory.perturbation import change_of_outputs, whether_to_deflate
from posterity.posterior import FittedModel

CHUNK = 32


def score(question: PoolQuestion) -> Tensor:
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
    for weight, target in _outcomes(likelihood, f, v):
        push = torch.einsum("bkl,bl->bk", share, likelihood.residual(f, target))
        moved = dual.outputs - torch.einsum("bnkl,bk->bnl", c, push)
        after += weight * _losses(dual, moved, variance).sum(1)
    return before - after


def _outcomes(likelihood: Likelihood, f: Tensor, v: Tensor) -> Sequence[tuple[Tensor, Tensor]]:
    """The labels that the model expects, with their weights."""
    try:
        return likelihood.outcomes(f, v)
    except Undefined:
        wanted = f"expected one label or a regression, got {f.shape[-1]} {likelihood.name} outputs"
        raise Undefined(f"leave_one_out: {wanted}") from None


def _losses(dual: Dual, f: Tensor, v: Tensor) -> Tensor:
    """Leave-one-out losses of the labelled examples with outputs f (..., N, K) and covariances v (..., N, K, K)."""
    likelihood = dual.likelihood
    y = dual.targets.expand(*f.shape[:-2], *dual.targets.shape)
    deflate = whether_to_deflate("auto", dual.trained.posterior)
    change = change_of_outputs(v, likelihood.curvature(f), likelihood.residual(f, y), deflate=deflate)
    return likelihood.loss(f + change, y)
