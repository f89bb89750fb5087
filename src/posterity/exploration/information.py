"""BALD of the linearised model, and of batches: log-determinants of prediction covariances.

    I(y; θ) ≈ ½ log det(I + V Λ),    V = J Σ Jᵀ,    Λ = ∂²ℓ/∂f²

Exact for Gaussian likelihoods on linear models. For a batch V holds the cross-covariances of its examples too; chosen
greedily, each further example is scored with the variance that the ones before it leave.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posterity.curvature import kernel, prediction_covariance
from posterity.exploration.question import PoolQuestion
from posterity.inputs import take
from posterity.progress import track

CHUNK = 256


def gain(variance: Tensor, root: Tensor) -> Tensor:
    """½ log det(I + Rᵀ V R) = ½ log det(I + V Λ) of each example, with Λ = R Rᵀ.

    Examples:
        >>> gain(torch.tensor([[[3.0]]]), torch.tensor([[[1.0]]])).exp()  # √(1 + 3)
        tensor([2.])
    """
    return 0.5 * torch.logdet(_whitened(variance, root))


def score(question: PoolQuestion) -> Tensor:
    """The information that each example of the pool would bring alone."""
    trained, found = question.trained, []
    with trained.at_mean():
        for batch in trained.batches("bald"):
            root = trained.likelihood.curvature_root(trained.outputs(batch.inputs).double())
            variance = prediction_covariance(trained.model, batch.inputs, trained.covariance).double()
            found.append(gain(variance, root).cpu())
    return torch.cat(found)


def choose(question: PoolQuestion, k: int) -> tuple[Tensor, Tensor]:
    """A batch by greedy log-determinants: positions, and the information that each adds to those before it.

    With M = R(I + RᵀVR)⁻¹Rᵀ of the example a that was chosen last, all others keep

        V_x ← V_x − C_xa M C_xaᵀ,    C_xa = k(x, a) given what was chosen before

    which is a block-wise Cholesky factorisation with pivots.
    """
    trained = question.trained
    places = question.shortlist(score(question))
    pool = question.examples(places)
    with trained.at_mean():
        parts = [take(pool.inputs, slice(start, start + CHUNK)) for start in range(0, len(places), CHUNK)]
        root = trained.likelihood.curvature_root(torch.cat([trained.outputs(x) for x in parts]).double())
        variance = torch.cat([prediction_covariance(trained.model, x, trained.covariance) for x in parts]).double()
        chosen: list[int] = []
        gains: list[float] = []
        past: list[tuple[Tensor, Tensor]] = []
        for _ in track(range(k), "batch"):
            scores = gain(variance, root)
            scores[chosen] = -torch.inf
            best = int(scores.argmax())
            chosen.append(best)
            gains.append(scores[best].item())
            one = take(pool.inputs, slice(best, best + 1))
            c = torch.cat([kernel(trained.model, x, one, trained.covariance)[:, 0] for x in parts]).double()
            for before, m in past:
                c = c - before @ m @ before[best].mT
            m = root[best] @ torch.linalg.solve(_whitened(variance[best], root[best]), root[best].mT)
            variance = variance - c @ m @ c.mT
            past.append((c, m))
    return places[chosen], torch.tensor(gains, dtype=torch.float64)


def _whitened(variance: Tensor, root: Tensor) -> Tensor:
    """I + Rᵀ V R, symmetric and positive for any Λ."""
    return torch.eye(root.shape[-1], dtype=root.dtype, device=root.device) + root.mT @ variance @ root
