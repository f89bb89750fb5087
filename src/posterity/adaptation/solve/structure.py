"""The Gaussian after an adaptation, in the structure that there was before.

P = P₀ + R + Σ_i w_i J_iᵀ Λ_i J_i        diagonal and full, i over memory and new data, at the new weights

Kronecker factors by the sums that they are made of (`factor_sums.py`), each of which is the old sum less that of memory
and removed examples at the old weights, and that of memory and new data at the new weights.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posterity.adaptation.past import Past
from posterity.adaptation.penalties.factor_sums import FactorSums
from posterity.adaptation.penalties.quadratic import gaussian_of
from posterity.adaptation.penalties.residual_curvature import (
    beyond,
    covers_all,
    data_precision,
    memory_diagonal,
    memory_matrix,
    positive_part,
)
from posterity.adaptation.problem import AdaptationProblem
from posterity.adaptation.transfer import fits, padded, widened
from posterity.linalg import DENSE_LIMIT
from posterity.posterior import Diagonal, Full, Kronecker, LastLayer, Memory, Structure
from posterity.trees import Tree, only_trainable, snapshot, to_vector


def structure_after(
    problem: AdaptationProblem, past: Past, hessian: Tensor | None = None
) -> tuple[Structure, str | None]:
    """The Gaussian at the new weights, and why it has another structure than before where that cannot be helped.

    Args:
        problem: Before; its new model has been trained.
        past: What represented the old data, in terms of the new model.
        hessian: The precision, where it is known; otherwise from the curvature at the new weights.
    """
    before, there = problem.posterior.structure, dict(problem.new.named_parameters())
    mean = snapshot({name: there[name] for name in problem.prior.names})
    with only_trainable(problem.new, mean):
        found, why = _gaussian(problem, past, mean, hessian)
    if not isinstance(before, LastLayer):
        return found, why
    if problem.heads is None and not set(before.inner.names) <= set(mean):
        return found, "the new model does not have the layer that was uncertain: all of its weights are now"
    rest = {name: p for name, p in there.items() if p.requires_grad and name not in mean}
    return LastLayer(found, snapshot(rest)), why


def _gaussian(
    problem: AdaptationProblem, past: Past, mean: Tree, hessian: Tensor | None
) -> tuple[Diagonal | Full | Kronecker, str | None]:
    before = gaussian_of(problem.posterior.structure)
    size = sum(m.numel() for m in mean.values())
    why = None
    if isinstance(before, Full):
        if size <= DENSE_LIMIT:
            return Full(mean, _matrix(problem, past, mean) if hessian is None else hessian), None
        why = f"a full matrix over {size} weights does not fit into memory: the posterior is diagonal"
    elif isinstance(before, Kronecker):
        prior = problem.prior.precision
        if all(bool((prior[name] == prior[name].reshape(-1)[0]).all()) for name in mean):
            return _kronecker(problem, past, mean), None
        why = "the prior is not one number for each parameter, as Kronecker factors need: the posterior is diagonal"
    elif not isinstance(before, Diagonal):
        why = f"a {before.kind} posterior cannot be computed from the curvature: the posterior is diagonal"
    if hessian is not None:
        return Diagonal(mean, Full(mean, hessian).precision_diagonal()), why
    return Diagonal(mean, _diagonal(problem, past)), why


def _diagonal(problem: AdaptationProblem, past: Past) -> Tree:
    memory = _at_hand(problem, past)
    parts = [_diagonal_of_the_rest(problem, past)]
    if memory is not None:
        parts.append(memory_diagonal(problem.new, memory, problem.posterior.likelihood, problem.prior.names))
    found = {}
    for name, prior in problem.prior.precision_diagonal().items():
        data = sum((tree[name].to(prior) for tree in parts if name in tree), start=torch.zeros_like(prior))
        found[name] = prior + data.clamp_min(0) / problem.scale
    return found


def _diagonal_of_the_rest(problem: AdaptationProblem, past: Past) -> Tree:
    """The old curvature less that of memory and removed examples at the old weights, negative where weights overdo it.

    An optimizer's precision may have more than the curvature of all its data at the mean: IVON averages over draws
    around it, where a network that fits is far more curved. Where all data are remembered, the share of this stays that
    examples stay; otherwise it is a part of the rest.
    """
    posterior, there = problem.posterior, dict(problem.new.named_parameters())
    if not isinstance(gaussian_of(posterior.structure), Diagonal):
        return past.rest.precision_diagonal()
    if _all_remembered(problem, past):
        stays = problem.keep * (1 - problem.change.gone / posterior.n)
        found = {name: stays * h for name, h in beyond(problem.old, posterior, problem.memory).items()}
    else:
        found = {name: problem.keep * h for name, h in data_precision(posterior).items()}
        for memory in _looked_up(problem, past):
            inside = memory_diagonal(problem.old, memory, posterior.likelihood, found)
            found = {name: h - inside[name].to(h) for name, h in found.items()}
    return padded(found, there, [name for name, h in found.items() if name in there and fits(h, there[name])])


def _matrix(problem: AdaptationProblem, past: Past, mean: Tree) -> Tensor:
    memory = _at_hand(problem, past)
    data = _matrix_of_the_rest(problem, past, mean)
    if memory is not None:
        found = memory_matrix(problem.new, memory, problem.posterior.likelihood, list(mean))
        data = found + data.to(found)
    prior = problem.prior.precision_diagonal()
    return to_vector({name: prior[name] for name in mean}).to(data).diag() + positive_part(data) / problem.scale


def _matrix_of_the_rest(problem: AdaptationProblem, past: Past, mean: Tree) -> Tensor:
    """The old curvature less that of memory and removed examples at the old weights; of other models, its diagonal."""
    posterior, old = problem.posterior, gaussian_of(problem.posterior.structure)
    assert isinstance(old, Full)
    if not all(name in mean and fits(m, mean[name]) for name, m in old.mean.items()) or _all_remembered(problem, past):
        rest = past.rest.precision_diagonal()
        left = [rest[name] if name in rest else torch.zeros_like(m) for name, m in mean.items()]
        return torch.cat([p.reshape(-1) for p in left]).diag()
    prior = posterior.prior.restrict(old.names).precision_diagonal()
    total = problem.keep * problem.scale * (old.precision - to_vector(prior).to(old.precision).diag())
    for memory in _looked_up(problem, past):
        total = total - memory_matrix(problem.old, memory, posterior.likelihood, old.names).to(total)
    return widened(total, old.mean, mean)


def _kronecker(problem: AdaptationProblem, past: Past, mean: Tree) -> Kronecker:
    """Both factors of each block as sums over the data that there are now."""
    likelihood = problem.posterior.likelihood
    now = FactorSums.over(problem.new, _at_hand(problem, past), likelihood)
    rest = _factors_of_the_rest(problem, past)
    factors = {}
    for name, m in mean.items():
        sums, mass = now.block(name, m)
        old, old_mass = rest.block(name, m)
        first, *others = (positive_part(a + b.to(a)) for a, b in zip(sums, old))
        factors[name] = (first / problem.scale, *(other / max(mass + old_mass, 1.0) for other in others))
    return Kronecker(mean, factors, {name: problem.prior.precision[name].reshape(-1)[0] for name in mean})


def _factors_of_the_rest(problem: AdaptationProblem, past: Past) -> FactorSums:
    """The old sums without those of the examples in the memory, and of those that were removed."""
    posterior = problem.posterior
    if _all_remembered(problem, past):
        return FactorSums({}, 0.0)
    total = FactorSums.of(posterior).scaled(problem.keep)
    with only_trainable(problem.old, total.sums):
        for memory in _looked_up(problem, past):
            total = total.less(FactorSums.over(problem.old, memory, posterior.likelihood))
    return total


def _looked_up(problem: AdaptationProblem, past: Past) -> list[Memory]:
    """Examples that are in the old curvature: remembered ones, and removed ones with all that they represent."""
    gone, memory = problem.change.removed, past.standing()
    found = [] if memory is None else [memory]
    return found if gone is None else [*found, Memory.of(gone, problem.keep * problem.change.counts)]


def _all_remembered(problem: AdaptationProblem, past: Past) -> bool:
    return past.memory is not None and covers_all(problem.posterior, problem.memory)


def _at_hand(problem: AdaptationProblem, past: Past) -> Memory | None:
    """Memory and new data, each example with the number of examples that it represents."""
    added, memory = problem.change.added, past.standing()
    if added is None:
        return memory
    if memory is None:
        return Memory.of(added)
    return Memory.concatenate([memory, Memory.of(added)])
