"""The old data in an adaptation: a memory, a quadratic for what is not in it, and the gradient of the data at θ*.

Σ_past ℓ  ≈  Σ_{i∈M} w_i D(h(f*_i) ‖ h(f_i)) + ½ (θ − θ*)ᵀ R (θ − θ*) + ⟨g, θ⟩,    g = −P₀(θ* − m₀) − Σ_removed ∇ℓ_i(θ*)

At the optimum θ* the data pull as hard as the prior N(m₀, P₀⁻¹) does, the other way; what is removed pulls no longer.
The prior is kept separate, so that it can change.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from posterity.adaptation.groups import is_label
from posterity.adaptation.penalties.kprior import FunctionDivergence, outputs_of
from posterity.adaptation.penalties.penalty import Penalty, Sum
from posterity.adaptation.penalties.quadratic import Quadratic, Slope, TiltedQuadratic, gaussian_of
from posterity.adaptation.penalties.replay import predictions_of, pulled_back
from posterity.adaptation.penalties.residual_curvature import split
from posterity.batches import Batch
from posterity.likelihoods import Likelihood
from posterity.posterior import Diagonal, Full, Memory, Posterior
from posterity.trees import Tree


@dataclass(frozen=True, eq=False)
class Past:
    """The representation of the old data, without the removed ones.

    Args:
        memory: Weighted examples with the old model's predictions, if any are left.
        rest: N(θ*, R⁻¹), the remainder.
        pull: g, the gradient of the old data at θ*.
        weights: How many examples each remembered one represents; smaller where R is positive.
    """

    memory: Memory | None
    rest: Diagonal | Full
    pull: Tree
    weights: Tensor | None

    @classmethod
    def of(cls, model: nn.Module, posterior: Posterior, memory: Memory | None) -> Past:
        """The past of a model at its posterior mean."""
        weights = None if memory is None else memory.weights
        return cls(*split(model, posterior, memory), _pull_of_prior(posterior), weights)

    @classmethod
    def remembered_only(
        cls, model: nn.Module, posterior: Posterior, memory: Memory | None, removed: Batch | None, counts: Tensor
    ) -> Past:
        """The past of a model that is trained on given data: the memory it leaves, and nothing that pulls."""
        gaussian = gaussian_of(posterior.structure)
        rest: Diagonal | Full = Diagonal(gaussian.mean, {name: torch.zeros(()) for name in gaussian.names})
        if memory is not None and removed is not None:
            memory = cover(model, posterior, memory, removed, counts)
        if gaussian.kind != Diagonal.kind:  # what other structures do not have examples for stays as it was
            rest = split(model, posterior, memory)[1]
        left = memory if memory is None or removed is None else without(memory, removed.ids)
        pull = {name: torch.zeros_like(m) for name, m in gaussian.mean.items()}
        return cls(left, rest, pull, None if left is None else left.weights)

    @classmethod
    def left(
        cls, model: nn.Module, posterior: Posterior, memory: Memory | None, removed: Batch, counts: Tensor, lost: Tree
    ) -> Past:
        """The past without removed examples, each of which represents so many, and without their gradient."""
        covering = cover(model, posterior, memory, removed, counts)
        weights = covering.weights[~torch.isin(covering.ids, removed.ids)]
        bearable, rest = split(model, posterior, covering)
        pull = {name: g - lost[name].to(g) for name, g in _pull_of_prior(posterior).items()}
        assert bearable is not None
        return cls(without(bearable, removed.ids), rest, pull, weights)

    def discounted(self, keep: float) -> Past:
        """The past times a number: a power prior, of data that count for less than they did."""
        if keep == 1:
            return self
        memory = None if self.memory is None else replace(self.memory, weights=keep * self.memory.weights)
        pull = {name: keep * g for name, g in self.pull.items()}
        return Past(memory, self.rest.times(keep), pull, None if self.weights is None else keep * self.weights)

    def standing(self) -> Memory | None:
        """The memory, each example with the number of examples that it represents; None where all are forgotten."""
        if self.memory is None or self.weights is None or not bool((self.weights > 0).any()):
            return None
        return replace(self.memory, weights=self.weights)

    def remembered(self, model: nn.Module) -> Memory | None:
        """The same with the present outputs of a model."""
        memory = self.standing()
        return None if memory is None else refreshed(memory, model)

    def penalty(
        self, model: nn.Module, posterior: Posterior, prior: Diagonal, scale: float, batch_size: int | None = None
    ) -> Sum:
        """The past and a prior as a penalty on a model of the same parameters, up to a constant."""
        if isinstance(self.rest, Diagonal):
            like = dict(model.named_parameters())
            both: Penalty = TiltedQuadratic.of(self.rest, self.pull, prior, scale, like)
        else:
            both = Quadratic(self.rest) + Slope(self.pull) + scale * Quadratic(prior)
        terms: list[tuple[float, Penalty]] = [(1.0, both)]
        if self.memory is not None:
            terms.append((1.0, FunctionDivergence(self.memory, posterior.likelihood, batch_size=batch_size)))
        return Sum(tuple(terms))


def cover(model: nn.Module, posterior: Posterior, memory: Memory | None, batch: Batch, counts: Tensor) -> Memory:
    """The memory with these examples in it, each standing for so many; the others represent the rest.

    Others of the same class make up for them first.
    """
    if memory is None:
        return joined(None, model, batch, counts.float())
    missing = (~torch.isin(batch.ids, memory.ids)).nonzero()[:, 0]
    there = torch.isin(memory.ids, batch.ids).cpu()
    weights = memory.weights.double().cpu()
    known = weights.sum().item()
    unknown = min(max(posterior.n - known, 0.0), counts[missing].sum().item())  # of the missing, in no weight so far
    share = unknown / max(counts[missing].sum().item(), 1e-300)
    own = weights.clone()
    for here, theirs in _classes(memory.targets, batch.targets):
        absent = counts[missing[theirs[missing]]].sum().item()
        left = weights[here].sum().item() + share * absent - counts[theirs].sum().item()
        own[here & ~there] *= max(left, 0.0) / max(weights[here & ~there].sum().item(), 1e-300)
    place = batch.ids.cpu().argsort()
    place = place[torch.searchsorted(batch.ids.cpu()[place], memory.ids.cpu()[there])]
    own[there] = counts[place]
    left = max(known + unknown - counts.sum().item(), 0.0)
    others = own[~there].sum().item()
    if others > 0 and abs(left / others - 1) > 1e-9:
        own[~there] *= left / others
    return joined(replace(memory, weights=own.to(memory.weights)), model, batch.take(missing), counts[missing].float())


def _classes(targets: Tensor, others: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Where each label of the others is, among targets and among the others; nothing where targets are no labels."""
    if is_label(targets):
        for label in others.unique():
            yield (targets == label.to(targets)).cpu(), (others == label).cpu()


def joined(memory: Memory | None, model: nn.Module, added: Batch, weights: Tensor | None = None) -> Memory:
    """A memory with more examples and the model's outputs for them."""
    if memory is not None and len(added) == 0:
        return memory
    weights = torch.ones(len(added)) if weights is None else weights
    predictions = outputs_of(model, added)
    if memory is None:
        return Memory.of(added, weights, predictions)
    predictions_of(memory)  # or an error
    return Memory.concatenate([memory, Memory.of(added, weights, predictions)])


def refreshed(memory: Memory, model: nn.Module) -> Memory:
    """A memory with the outputs of another model."""
    return replace(memory, predictions=outputs_of(model, memory.batch()))


def without(memory: Memory, ids: Tensor) -> Memory | None:
    """A memory in which these examples are no longer."""
    rows = (~torch.isin(memory.ids, ids)).nonzero()[:, 0]
    return memory.take(rows) if len(rows) else None


def _pull_of_prior(posterior: Posterior) -> Tree:
    """−P₀(θ* − m₀), untempered."""
    scale, prior = posterior.temperature, posterior.prior
    mean = gaussian_of(posterior.structure).mean
    return {name: -scale * prior.precision[name].to(m) * (m - prior.mean[name].to(m)) for name, m in mean.items()}


def data_gradient(
    model: nn.Module, batch: Batch, likelihood: Likelihood, names: tuple[str, ...], weights: Tensor | None = None
) -> Tree:
    """Σ w_i ∇ℓ_i of a batch at the model's weights, in evaluation mode; w_i = 1 unless given."""
    residual = likelihood.residual(outputs_of(model, batch), batch.targets)
    if weights is not None:
        residual = residual * weights.to(residual).reshape(-1, *(1 for _ in residual.shape[1:]))
    return pulled_back(model, batch.inputs, residual, names)
