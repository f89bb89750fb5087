"""What a memory represents and what it leaves out: weighted examples, and a Gaussian for the curvature of all others.

Σ_{i∈M} w_i J_iᵀ Λ_i J_i + R  =  P − P₀

Memory and remainder together have the curvature of the posterior. Weights N/M make a memory count for more than all
data in some directions, where R would be negative. A dense R takes the largest weights u + β(w − u), u = min(w, 1),
that leave it positive; a diagonal R is cut off at zero. Weights below 1 are those of a past that was forgotten in part.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from posterity.adaptation.penalties.quadratic import gaussian_of
from posterity.batches import Batches, batches
from posterity.curvature import diagonal_ggn, full_ggn
from posterity.inputs import take
from posterity.likelihoods import Likelihood
from posterity.linalg import symmetrise
from posterity.posterior import Diagonal, Full, Memory, Posterior
from posterity.trees import Tree, evaluating, only_trainable, to_vector


def covers_all(posterior: Posterior, memory: Memory | None) -> bool:
    """Whether every training example is in the memory, once."""
    return memory is not None and len(memory) == posterior.n and bool((memory.weights == 1).all())


def split(model: nn.Module, posterior: Posterior, memory: Memory | None) -> tuple[Memory | None, Diagonal | Full]:
    """The memory, with admissible weights, and the Gaussian N(θ*, R⁻¹) of everything it does not represent.

    Kronecker posteriors are taken by the diagonal of their precision: Kronecker products do not subtract.

    Args:
        model: The model at the posterior mean.
        posterior: A Gaussian posterior; it counts untempered.
        memory: Weighted examples, if any.
    """
    gaussian = gaussian_of(posterior.structure)
    scale = posterior.temperature
    prior = posterior.prior.restrict(gaussian.names).precision_diagonal()
    if covers_all(posterior, memory):
        return memory, Diagonal(gaussian.mean, {name: torch.zeros(()) for name in gaussian.names})
    if isinstance(gaussian, Full):
        data = scale * (gaussian.precision - to_vector(prior).to(gaussian.precision).diag())
        return _dense_split(model, posterior, memory, data, gaussian.mean)
    return memory, Diagonal(gaussian.mean, beyond(model, posterior, memory))


def data_precision(posterior: Posterior) -> Tree:
    """The diagonal of P − P₀, untempered: what the data have added to the prior."""
    gaussian = gaussian_of(posterior.structure)
    prior = posterior.prior.restrict(gaussian.names).precision_diagonal()
    scale = posterior.temperature
    return {name: scale * (p - prior[name].to(p)) for name, p in gaussian.precision_diagonal().items()}


def beyond(model: nn.Module, posterior: Posterior, memory: Memory | None) -> Tree:
    """The diagonal of P − P₀ − Σ_{i∈M} w_i J_iᵀΛ_iJ_i, where positive: curvature that the memory does not have."""
    found = data_precision(posterior)
    inside = {} if memory is None else memory_diagonal(model, memory, posterior.likelihood, found)
    return {name: (h - inside[name].to(h) if inside else h).clamp_min(0) for name, h in found.items()}


def _dense_split(
    model: nn.Module, posterior: Posterior, memory: Memory | None, data: Tensor, mean: Tree
) -> tuple[Memory | None, Full]:
    if memory is None:
        return None, Full(mean, positive_part(data))
    names, likelihood = list(mean), posterior.likelihood
    least = memory.weights.clamp(max=1.0)
    once = memory_matrix(model, replace(memory, weights=least), likelihood, names).to(data)
    beyond = memory_matrix(model, memory, likelihood, names).to(data) - once
    left = data - once
    beta = _largest_share(left, beyond)
    weights = least + beta * (memory.weights - least)
    return replace(memory, weights=weights), Full(mean, positive_part(left - beta * beyond))


def _largest_share(whole: Tensor, part: Tensor) -> float:
    """The largest β in [0, 1] with whole − β part positive."""
    floor = 1e-10 * whole.diagonal().abs().mean().clamp_min(1e-300)
    factor, failed = torch.linalg.cholesky_ex(symmetrise(whole) + floor * torch.eye(len(whole)).to(whole))
    if bool(failed):
        return 0.0
    inside = torch.linalg.solve_triangular(factor, symmetrise(part), upper=False)
    inside = torch.linalg.solve_triangular(factor, inside.mT, upper=False)
    largest = torch.linalg.eigvalsh(symmetrise(inside))[-1].item()
    return 1.0 if largest <= 1 + 1e-6 else 1 / largest


def memory_diagonal(model: nn.Module, memory: Memory, likelihood: Likelihood, names: Collection[str]) -> Tree:
    """The diagonal of Σ_i w_i J_iᵀΛ_iJ_i at the model's weights, over some parameters, frozen meanwhile or not."""
    total: Tree = {}
    for weight, data in by_weight(memory):
        with evaluating(model), only_trainable(model, names):
            found = diagonal_ggn(model, data, likelihood)
        total = {name: total.get(name, 0.0) + weight * h for name, h in found.items()}
    return total


def memory_matrix(model: nn.Module, memory: Memory, likelihood: Likelihood, names: Sequence[str]) -> Tensor:
    """Σ_i w_i J_iᵀΛ_iJ_i at the model's weights, over some parameters."""
    with evaluating(model):
        parts = [w * full_ggn(model, data, likelihood, names) for w, data in by_weight(memory)]
    return torch.stack(parts).sum(0)


def by_weight(memory: Memory) -> Iterator[tuple[float, Batches]]:
    """The examples of each distinct weight: there are few, and their curvature is not weighted."""
    for weight in memory.weights.unique().tolist():
        rows = (memory.weights == weight).nonzero()[:, 0]
        yield weight, batches((take(memory.inputs, rows), memory.targets[rows]))


def positive_part(matrix: Tensor) -> Tensor:
    """The nearest positive-semidefinite matrix: negative eigenvalues become zero."""
    matrix = symmetrise(matrix)
    values, vectors = torch.linalg.eigh(matrix)
    if bool((values >= 0).all()):
        return matrix
    return symmetrise((vectors * values.clamp_min(0)) @ vectors.mT)
