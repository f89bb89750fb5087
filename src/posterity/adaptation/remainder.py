"""What a memory leaves out: the curvature of all other data, as a Gaussian around the old weights.

R = (P − P₀ − Σ_{i∈M} w_i J_iᵀ Λ_i J_i)₊

Memory and remainder together have the curvature of the posterior. Where weights make the memory count for more than
all data in some direction, nothing remains there: the negative part is cut off.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posterity.adaptation.quadratic import gaussian_of
from posterity.adaptation.replay import rows_of
from posterity.batches import batches
from posterity.curvature import diagonal_ggn, full_ggn
from posterity.likelihoods import Likelihood
from posterity.linalg import symmetrise
from posterity.posterior import Diagonal, Full, Gaussian, Memory, Posterior
from posterity.trees import Tree, evaluating, to_vector


def covers_all(posterior: Posterior, memory: Memory | None) -> bool:
    """Whether every training example is in the memory, once."""
    return memory is not None and len(memory) == posterior.n and bool((memory.weights == 1).all())


def remainder(model: nn.Module, posterior: Posterior, memory: Memory | None) -> Diagonal | Full:
    """The Gaussian N(θ*, R⁻¹) of everything that the memory does not stand for.

    Kronecker posteriors are taken by the diagonal of their precision: Kronecker products do not subtract.

    Args:
        model: The model at the posterior mean.
        posterior: A Gaussian posterior; it counts untempered.
        memory: Weighted examples, if any.
    """
    gaussian = gaussian_of(posterior.structure)
    scale = posterior.n / posterior.ess
    prior = posterior.prior.restrict(gaussian.names)
    if covers_all(posterior, memory):
        return Diagonal(gaussian.mean, {name: torch.zeros(()) for name in gaussian.names})
    if isinstance(gaussian, Full):
        rest = scale * (gaussian.precision - to_vector(prior.precision_diagonal()).to(gaussian.precision).diag())
        if memory is not None:
            rest = rest - _matrix(memory_curvature(gaussian, model, memory, posterior.likelihood)).to(rest)
        return Full(gaussian.mean, positive_part(rest))
    precision, known = gaussian.precision_diagonal(), prior.precision_diagonal()
    inside = (
        {}
        if memory is None
        else _tree(memory_curvature(Diagonal(gaussian.mean, precision), model, memory, posterior.likelihood))
    )
    left = {
        name: scale * (p - known[name].to(p)) - inside.get(name, p.new_zeros(())).to(p) for name, p in precision.items()
    }
    return Diagonal(gaussian.mean, {name: r.clamp_min(0) for name, r in left.items()})


def memory_curvature(like: Gaussian, model: nn.Module, memory: Memory, likelihood: Likelihood) -> Tree | Tensor:
    """Σ_i w_i J_iᵀΛ_iJ_i at the model's weights: a matrix where `like` is full, its diagonal otherwise."""
    names = list(like.names)
    total: Tree | Tensor | None = None
    with evaluating(model):
        # One pass for each distinct weight: there are few, the curvature of a batch knows no weights.
        for weight in memory.weights.unique().tolist():
            rows = (memory.weights == weight).nonzero()[:, 0]
            data = batches((rows_of(memory.inputs, rows), memory.targets[rows]))
            if isinstance(like, Full):
                matrix = weight * full_ggn(model, data, likelihood, names)
                total = matrix if total is None else _matrix(total) + matrix
            else:
                found = diagonal_ggn(model, data, likelihood)
                before = dict.fromkeys(names, 0.0) if total is None else _tree(total)
                total = {name: before[name] + weight * found[name] for name in names}
    assert total is not None
    return total


def positive_part(matrix: Tensor) -> Tensor:
    """The nearest positive-semidefinite matrix: negative eigenvalues become zero."""
    matrix = symmetrise(matrix)
    values, vectors = torch.linalg.eigh(matrix)
    if bool((values >= 0).all()):
        return matrix
    return symmetrise((vectors * values.clamp_min(0)) @ vectors.mT)


def _matrix(curvature: Tree | Tensor) -> Tensor:
    assert isinstance(curvature, Tensor)
    return curvature


def _tree(curvature: Tree | Tensor) -> Tree:
    assert not isinstance(curvature, Tensor)
    return curvature
