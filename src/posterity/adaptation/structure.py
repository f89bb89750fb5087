"""The Gaussian after an adaptation, in the structure that there was before.

P = P₀ + R + Σ_i w_i J_iᵀ Λ_i J_i        diagonal and full, i over memory and new data, at the new weights

Kronecker products do not subtract, but the sums that `po.laplace` makes their factors of do:

B = Σ b bᵀ,   N A = Σ a aᵀ;    each is the old sum − that of memory and removed examples at the old weights
                                                 + that of memory and new data at the new weights
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posterity.adaptation.carrying import fits, padded
from posterity.adaptation.changes import Change
from posterity.adaptation.kprior import gathered
from posterity.adaptation.past import Past
from posterity.adaptation.quadratic import gaussian_of
from posterity.adaptation.remainder import (
    beyond,
    by_weight,
    covers_all,
    memory_diagonal,
    memory_matrix,
    positive_part,
)
from posterity.adaptation.situation import Situation
from posterity.curvature import kronecker_ggn
from posterity.likelihoods import Likelihood
from posterity.posterior import Diagonal, Full, Kronecker, LastLayer, Memory, Posterior, Structure
from posterity.posterior._structure import DENSE_LIMIT, reordered
from posterity.trees import Tree, evaluating, only_trainable, snapshot, to_vector

Blocks = Mapping[str, tuple[Tensor, ...]]


def structure_after(situation: Situation, past: Past, hessian: Tensor | None = None) -> tuple[Structure, str | None]:
    """The Gaussian at the new weights, and why it has another structure than before where that cannot be helped.

    Args:
        situation: Before; its new model has been trained.
        past: What stood for the old data, in terms of the new model.
        hessian: The precision, where it is known; otherwise from the curvature at the new weights.
    """
    before, there = situation.posterior.structure, dict(situation.new.named_parameters())
    mean = snapshot({name: there[name] for name in situation.prior.names})
    with only_trainable(situation.new, mean):
        found, why = _gaussian(situation, past, mean, hessian)
    if not isinstance(before, LastLayer):
        return found, why
    if situation.heads is None and not set(before.inner.names) <= set(mean):
        return found, "the new model does not have the layer that was uncertain: all of its weights are now"
    rest = {name: p for name, p in there.items() if p.requires_grad and name not in mean}
    return LastLayer(found, snapshot(rest)), why


def _gaussian(
    situation: Situation, past: Past, mean: Tree, hessian: Tensor | None
) -> tuple[Diagonal | Full | Kronecker, str | None]:
    before = gaussian_of(situation.posterior.structure)
    size = sum(m.numel() for m in mean.values())
    why = None
    if isinstance(before, Full):
        if size <= DENSE_LIMIT:
            return Full(mean, _matrix(situation, past, mean) if hessian is None else hessian), None
        why = f"a full matrix over {size} weights does not fit into memory: the posterior is diagonal"
    elif isinstance(before, Kronecker):
        prior = situation.prior.precision
        if all(bool((prior[name] == prior[name].reshape(-1)[0]).all()) for name in mean):
            return _kronecker(situation, past, mean), None
        why = "the prior is not one number for each parameter, as Kronecker factors need: the posterior is diagonal"
    elif not isinstance(before, Diagonal):
        why = f"a {before.kind} posterior cannot be computed from the curvature: the posterior is diagonal"
    if hessian is not None:
        return Diagonal(mean, Full(mean, hessian).precision_diagonal()), why
    return Diagonal(mean, _diagonal(situation, past)), why


def _diagonal(situation: Situation, past: Past) -> Tree:
    memory = _at_hand(situation, past)
    parts = [past.rest.precision_diagonal(), _sharpness(situation)]
    if memory is not None:
        parts.append(memory_diagonal(situation.new, memory, situation.posterior.likelihood))
    total = {name: situation.scale * p for name, p in situation.prior.precision_diagonal().items()}
    for tree in parts:
        total = {name: p + tree[name].to(p) if name in tree else p for name, p in total.items()}
    return {name: p / situation.scale for name, p in total.items()}


def _matrix(situation: Situation, past: Past, mean: Tree) -> Tensor:
    prior = situation.prior.precision_diagonal()
    matrix = situation.scale * to_vector({name: prior[name] for name in mean}).diag()
    memory = _at_hand(situation, past)
    if memory is not None:
        found = memory_matrix(situation.new, memory, situation.posterior.likelihood, list(mean))
        matrix = matrix.to(found) + found
    if isinstance(past.rest, Full):
        matrix = matrix + reordered(past.rest.precision, past.rest.mean, mean).to(matrix)
    else:
        rest = past.rest.precision_diagonal()
        left = [rest[name] if name in rest else torch.zeros_like(m) for name, m in mean.items()]
        matrix = matrix + torch.cat([p.reshape(-1) for p in left]).to(matrix).diag()
    return matrix / situation.scale


def _kronecker(situation: Situation, past: Past, mean: Tree) -> Kronecker:
    """Both factors of each block as sums over the data that there are now."""
    likelihood = situation.posterior.likelihood
    now = FactorSums.over(situation.new, _at_hand(situation, past), likelihood)
    rest = _factors_of_the_rest(situation)
    factors = {}
    for name, m in mean.items():
        sizes = (m.numel(),) if m.ndim < 2 else (len(m), m.numel() // len(m))
        sums, mass = now.block(name, sizes)
        old, old_mass = rest.block(name, sizes)
        first, *others = (positive_part(a + b.to(a)) for a, b in zip(sums, old))
        factors[name] = (first / situation.scale, *(other / max(mass + old_mass, 1.0) for other in others))
    return Kronecker(mean, factors, {name: situation.prior.precision[name].reshape(-1)[0] for name in mean})


def _factors_of_the_rest(situation: Situation) -> FactorSums:
    """The old sums without those of the examples in the memory, and of those that were removed."""
    posterior, past, change = situation.posterior, situation.past, situation.change
    if past.memory is not None and covers_all(posterior, situation.memory):
        return FactorSums({}, 0.0)
    total = FactorSums.of(posterior)
    with only_trainable(situation.old, total.sums):
        for memory in (past.memory, _counted(change)):
            total = total.less(FactorSums.over(situation.old, memory, posterior.likelihood))
    return total


def _counted(change: Change) -> Memory | None:
    gone = change.removed
    return None if gone is None else Memory(gone.inputs, gone.targets, gone.ids, change.counts)


@dataclass(frozen=True, eq=False)
class FactorSums:
    """Σ w b bᵀ and, for parameters with two factors, Σ w a aᵀ.

    Args:
        sums: For each parameter.
        mass: Σ w, the number of examples in the sums.
    """

    sums: Blocks
    mass: float

    @classmethod
    def of(cls, posterior: Posterior) -> FactorSums:
        """What a Kronecker posterior stands for, untempered."""
        gaussian = gaussian_of(posterior.structure)
        assert isinstance(gaussian, Kronecker)
        scale, n = posterior.n / posterior.ess, posterior.n
        return cls({name: (scale * b, *(n * a for a in rest)) for name, (b, *rest) in gaussian.factors.items()}, n)

    @classmethod
    def over(cls, model: nn.Module, memory: Memory | None, likelihood: Likelihood) -> FactorSums:
        """The sums over weighted examples at the model's weights, for all trainable parameters."""
        total = cls({}, 0.0)
        for weight, data in () if memory is None else by_weight(memory):
            with evaluating(model):
                found = kronecker_ggn(model, data, likelihood)
            mass = weight * data.n
            total = total.plus(
                cls({name: (weight * b, *(mass * a for a in rest)) for name, (b, *rest) in found.items()}, mass)
            )
        return total

    def plus(self, other: FactorSums, sign: float = 1.0) -> FactorSums:
        """The sums over both."""
        sums = dict(self.sums)
        for name, theirs in other.sums.items():
            mine = sums.get(name, tuple(torch.zeros_like(t) for t in theirs))
            sums[name] = tuple(a + sign * b.to(a) for a, b in zip(mine, theirs))
        return FactorSums(sums, self.mass + sign * other.mass)

    def less(self, other: FactorSums) -> FactorSums:
        """The sums without those of the other."""
        return self.plus(other, -1.0)

    def block(self, name: str, sizes: tuple[int, ...]) -> tuple[tuple[Tensor, ...], float]:
        """The sums of one parameter of these sizes, with zeros for outputs that are new; nothing if it is another."""
        found = self.sums.get(name, ())
        known = tuple(map(len, found))
        if known[1:] != sizes[1:] or len(known) != len(sizes) or known[0] > sizes[0]:
            return tuple(torch.zeros(size, size) for size in sizes), 0.0
        extra = sizes[0] - known[0]
        return (F.pad(found[0], (0, extra, 0, extra)), *found[1:]), self.mass


def _at_hand(situation: Situation, past: Past) -> Memory | None:
    """Memory and new data, each example with the weight that it counts with."""
    added, memory = situation.change.added, past.memory
    if added is None:
        return memory
    if memory is None:
        return Memory(added.inputs, added.targets, added.ids)
    both = gathered([memory.batch(), added])
    weights = torch.cat((memory.weights, memory.weights.new_ones(len(added))))
    return Memory(both.inputs, both.targets, both.ids, weights)


def _sharpness(situation: Situation) -> Tree:
    """What an optimizer's precision has beyond the curvature of all its data at the mean, for the share that stays.

    IVON averages over draws around the mean, where a network that fits is far more curved than at the mean itself.
    A remainder holds this too; where the memory is all data there is none.
    """
    posterior, memory, there = situation.posterior, situation.memory, dict(situation.new.named_parameters())
    if not (isinstance(posterior.structure, Diagonal) and covers_all(posterior, memory)):
        return {}
    stays = 1 - situation.change.gone / posterior.n
    found = beyond(situation.old, posterior, memory)
    names = [name for name, h in found.items() if name in there and fits(h, there[name])]
    return {name: stays * h for name, h in padded(found, there, names).items()}
