"""Everything an adaptation starts from, and what it ends with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from posterity.adaptation.changes import Change
from posterity.adaptation.heads import Head, find_head, grown
from posterity.adaptation.past import Past
from posterity.adaptation.transfer import fits
from posterity.batches import Batch
from posterity.errors import expected
from posterity.posterior import Diagonal, Memory, Posterior, Training
from posterity.trees import Tree

WARM, ANEW = "warm_start", "anew"


@dataclass(frozen=True, eq=False)
class AdaptationProblem:
    """A model at its posterior mean, what is known of its data, and what is to change.

    Args:
        old: A copy of the model at the posterior mean.
        new: The model to be adapted, with outputs for all classes.
        heads: The linear layers of both that hold all that is learnt; None if other layers learn too.
        posterior: The old posterior.
        whole: All old data, where they are given.
        memory: What is remembered.
        change: What is to change.
        prior: The prior afterwards.
        way: How it is solved, one of "newton", "warm_start", "anew" and the methods of K-priors.
        why: The reason for it.
        recalls: Whether the memory represents the past; a quadratic alone does where only that was asked for.
        keep: How much the past counts, 1 − γ where the share γ is forgotten.
    """

    old: nn.Module
    new: nn.Module
    heads: tuple[Head, Head] | None
    posterior: Posterior
    whole: Batch | None
    memory: Memory | None
    change: Change
    prior: Diagonal
    way: str
    why: str
    recalls: bool
    keep: float = 1.0

    @property
    def scale(self) -> float:
        """n/ess: what untempers a precision."""
        return self.posterior.temperature

    @property
    def pulling(self) -> Diagonal:
        """The prior in training: without precision where it has decided widths alone, as in the old training.

        A K-prior still pulls weights that the old model had to where they were, as much as the past counts; a warm
        start pulls none.
        """
        if not self.widths_alone():
            return self.prior
        if self.way == WARM:
            return self.prior.times(0.0)
        before = self.posterior.mean
        kept = {name: name in before and fits(before[name], m) for name, m in self.prior.mean.items()}
        if all(kept.values()) and self.keep == 1:
            return self.prior
        return Diagonal(self.prior.mean, {name: self.keep * kept[name] * p for name, p in self.prior.precision.items()})

    @property
    def n(self) -> int:
        """Number of examples afterwards; of those before, as many as the past counts for."""
        return round(self.keep * (self.posterior.n - self.change.gone)) + self.change.new

    def forgetting(self, forget: float) -> AdaptationProblem:
        """The same, with a past that counts for less."""
        less = replace(self, keep=1 - forget)
        if forget < 1 or self.heads is not None:
            return less
        why = "the whole past is forgotten: trained on the new data alone, from new weights"
        return replace(less, way=ANEW, why=why)

    def other_prior(self) -> bool:
        """Whether the prior of a weight that there was is another one."""
        old, new = self.posterior.prior, self.prior
        same = [name for name, m in new.mean.items() if name in old.mean and old.mean[name].shape == m.shape]
        return any(
            not torch.equal(a[name].expand_as(b[name]), b[name].expand_as(a[name]).to(a[name]))
            for a, b in ((old.mean, new.mean), (old.precision_diagonal(), new.precision_diagonal()))
            for name in same
        )

    def widths_alone(self) -> bool:
        """Whether the prior has decided widths alone, and is to do so afterwards."""
        return not self.posterior.prior_pulls and not self.other_prior()

    def prior_after(self, mean: Tree) -> Diagonal:
        """The prior that the adapted posterior carries: one that decides widths alone is centred at its mean."""
        if not self.widths_alone():
            return self.prior
        return Diagonal({name: mean[name] for name in self.prior.names}, self.prior.precision)

    def other_model(self) -> bool:
        """Whether the new model is not the old one with, perhaps, more outputs."""
        before = self.before()
        shapes = [{name: p.shape for name, p in model.named_parameters()} for model in (before, self.new)]
        return shapes[0] != shapes[1] or [type(m) for m in before.modules()] != [type(m) for m in self.new.modules()]

    def before(self) -> nn.Module:
        """What there would be without adaptation: the old model, with outputs for new classes."""
        head = find_head(self.old, one_example(self.whole, self.memory, self.change.added))
        if self.change.classes is None or head is None:
            return self.old
        return grown(self.old, head, self.change.classes)

    def examples(self) -> Batch:
        """The number of given examples, kept or removed."""
        found = (self.whole, None if self.memory is None else self.memory.batch(), self.change.added)
        return next(batch for batch in found if batch is not None)

    def all_data(self) -> Batch | None:
        """What retraining would train on, where all of it is given."""
        if self.whole is None:
            return None
        removed = self.change.removed
        stays = torch.ones(len(self.whole), dtype=torch.bool)
        if removed is not None:
            stays &= ~torch.isin(self.whole.ids, removed.ids)
        rows = stays.nonzero()[:, 0]
        kept = self.whole.take(rows)
        return kept if self.change.added is None else Batch.concatenate([kept, self.change.added])


@dataclass(frozen=True, eq=False)
class Solved:
    """After: the model, the past in its terms, its precision where that is known, and how it came about."""

    model: nn.Module
    past: Past
    precision: Tensor | None
    memory: Memory | None
    exact: bool
    steps: int
    looked_at: float
    residual: float | None
    training: Training | None = None  # where it is to be recorded as another than the old one


def one_example(*sources: Batch | Memory | None) -> Any:
    """Inputs to run a model on."""
    for source in sources:
        if source is not None:
            return source.inputs
    raise expected("data", "old data, a memory or added data (nothing else is known of the past)", "none of them")
