"""What if these examples had been missing, weighted otherwise or labelled otherwise? Estimated, not retrained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from posterity.batches import Batch, batches
from posterity.curvature import pushforward
from posterity.errors import expected, require, require_whole
from posterity.inputs import call
from posterity.memory.groups import Part, shift
from posterity.memory.ids import as_ids
from posterity.memory.perturbation import Deflate, whether_to_deflate
from posterity.memory.refinement import Changed, ChangedObjective, affordable, refined, shifted, standing_for
from posterity.memory.reliability import Reliability
from posterity.posterior import FittedModel
from posterity.progress import track
from posterity.trees import Tree


@dataclass(frozen=True, eq=False, repr=False)
class Outcome:
    """What a change of the training data would do to predictions.

    Args:
        ids: Ids of the examples that are predicted.
        outputs: f before (N, K).
        change: Estimated Δf (N, K).
        before: Expected targets (probabilities, means) before, (N, K).
        after: The same afterwards.
        loss_before: Loss of each example before, (N,).
        loss_after: The same afterwards.
        reliability: How far to trust the change of their mean loss.
    """

    ids: Tensor
    outputs: Tensor
    change: Tensor
    before: Tensor
    after: Tensor
    loss_before: Tensor
    loss_after: Tensor
    reliability: Reliability = field(kw_only=True)

    @property
    def loss_change(self) -> float:
        """Estimated change of the mean loss."""
        return (self.loss_after - self.loss_before).mean().item()

    def __repr__(self) -> str:
        before, warning = self.loss_before.mean().item(), self.reliability.warning
        losses = f"mean loss {before:.4g} -> {before + self.loss_change:.4g}"
        return f"Outcome({len(self.ids)} examples, {losses}{'; warning: ' if warning else ''}{warning})"


@dataclass(frozen=True, eq=False, repr=False)
class WhatIf:
    """The estimated effect of changing some training examples.

    Args:
        trained: Model, posterior and data.
        ids: The examples that change.
        parameters: Estimated change Δθ of the weights.
        reliability: How far to trust it.
        examples: The examples themselves, as they were.
        passes: Passes over the data beyond the first step. Without any, outputs are linear in the change of the
            weights; otherwise they are those of the model at its new weights.
    """

    trained: FittedModel
    ids: Tensor
    parameters: Tree
    reliability: Reliability
    examples: list[Batch]
    passes: int = 0

    def __repr__(self) -> str:
        size = torch.cat([t.reshape(-1) for t in self.parameters.values()]).norm().item()
        return f"WhatIf({len(self.ids)} examples, |change of weights| = {size:.3g}, {self.reliability})"

    def on(self, test: Any = None, *, batch_size: int = 256) -> Outcome:
        """The estimated change of predictions and losses.

        Args:
            test: Data to look at, (inputs, targets), a Dataset or a DataLoader; by default the changed examples
                themselves, under the targets they had.
            batch_size: Examples at a time, where `test` is not a loader.
        """
        trained = self.trained
        stream = self.examples if test is None else batches(test, batch_size=batch_size)
        parts = []
        with trained.at_mean():
            for batch in track(stream, "what if", total=len(stream)):
                parts.append(_outcome(trained, batch.to(trained.device), self._changes))
        *columns, straight = (torch.cat(column) for column in zip(*parts))
        change = columns[2]
        bend = (change - straight).norm() / change.norm().clamp_min(1e-300)
        return Outcome(*columns, reliability=self.reliability.about(columns[-1] - columns[-2], bend.item()))

    def _changes(self, batch: Batch, f: Tensor) -> tuple[Tensor, Tensor]:
        """Δf of some examples whose outputs are f, and JΔθ."""
        model = self.trained.model
        there = dict(model.named_parameters())
        step = {name: t.to(there[name].dtype) for name, t in self.parameters.items()}
        straight = pushforward(model, batch.inputs, step)
        if not self.passes:
            return straight, straight
        with torch.no_grad(), shifted(model, step):
            return call(model, batch.inputs) - f, straight


def what_if(
    trained: FittedModel,
    known: Tensor,
    effective_dimension: float,
    *,
    remove: Iterable[int] = (),
    relabel: Mapping[int, Any] | None = None,
    reweight: Mapping[int, float] | None = None,
    deflate: Deflate = "auto",
    passes: int | str = 0,
) -> WhatIf:
    """The memory-perturbation of a group: all removals, new labels and new weights at once.

    Args:
        trained: Model, posterior and data.
        known: Ids of all rows of the data, in order.
        effective_dimension: That of all data, to be reported.
        remove: Ids to be removed.
        relabel: New targets by id.
        reweight: New weights by id (1 is how they were trained with, 0 is removal).
        deflate: As in `memory_map`.
        passes: Passes over the data that check the step and carry it on.
    """
    if passes != "auto":
        require_whole("passes", passes, least=0)
    weights, labels = _wishes(remove, {} if relabel is None else relabel, {} if reweight is None else reweight)
    ids = torch.tensor(sorted({*weights, *labels}))
    rows = _rows(known, ids)
    deflating = whether_to_deflate(deflate, trained.posterior)
    examples = trained.examples(ids, rows)
    rest = None
    with trained.at_mean():
        group = [_changed(trained, batch, weights, labels) for batch in examples]
        found = shift(trained, [_part(trained, some) for some in group], deflate=deflating)
        parameters, made = found.parameters, affordable(trained, passes)
        if made:
            objective = ChangedObjective(trained, *standing_for(trained, known, ids), group)
            better = refined(trained, objective, parameters, made)
            parameters, rest = better.parameters, better.rest
    share = len(ids) / len(known)
    verdict = Reliability.of(trained.posterior, found.leverage, effective_dimension, deflating, share, rest)
    return WhatIf(trained, ids, parameters, verdict, examples, made)


def _wishes(
    remove: Iterable[int], relabel: Mapping[int, Any], reweight: Mapping[int, float]
) -> tuple[dict[int, float], dict[int, Any]]:
    """New weights and new targets by id, checked."""
    removed = as_ids("remove", remove).tolist()
    for what, given in (("relabel", relabel), ("reweight", reweight)):
        require(isinstance(given, Mapping), what, "a mapping by id", type(given).__name__)
        as_ids(what, given)
    labels = {int(i): y for i, y in relabel.items()}
    weights = dict.fromkeys(removed, 0.0) | {int(i): w for i, w in reweight.items()}
    require(bool(weights or labels), "what_if", "ids to remove, relabel or reweight", "an empty selection")
    for i in removed:
        if i in reweight or i in labels:
            raise expected("what_if", "a removed example nowhere else", f"id {i} twice")
    return {i: _weight(i, w) for i, w in weights.items()}, labels


def _weight(i: int, given: Any) -> float:
    """A weight, which may be an element of a tensor or an array."""
    single = isinstance(given, Real) or getattr(given, "ndim", 1) == 0
    require(single and 0 <= given < float("inf"), f"weight of id {i}", "a finite number >= 0", given)
    return float(given)


def _rows(known: Tensor, ids: Tensor) -> Tensor:
    """The positions of these ids in the data."""
    order = known.argsort()
    place = torch.searchsorted(known[order], ids).clamp_max(len(known) - 1)
    missing = ids[known[order][place] != ids]
    require(len(missing) == 0, "ids", "ids of the data", missing[:5].tolist())
    return order[place]


def _changed(trained: FittedModel, batch: Batch, weights: Mapping[int, float], labels: Mapping[int, Any]) -> Changed:
    """Some examples, with the targets and weights that they get."""
    f = trained.outputs(batch.inputs)
    y = trained.targets(f, batch.targets)
    new = y.clone()
    for row, i in enumerate(batch.ids.tolist()):
        if i in labels:
            new[row] = new_target(labels[i], y[row])
    trained.likelihood.check(f, new)
    w = torch.tensor([[weights.get(i, 1.0)] for i in batch.ids.tolist()], dtype=f.dtype, device=f.device)
    other = torch.tensor([[float(i in labels)] for i in batch.ids.tolist()], dtype=f.dtype, device=f.device)
    return Changed(Batch(batch.inputs, y, batch.ids), new, w, torch.maximum((1 - w).abs(), other))


def _part(trained: FittedModel, some: Changed) -> Part:
    """e − w e′, (1 − w)Λ and the Λ of what changes, of some examples."""
    law, inputs, w = trained.likelihood, some.batch.inputs, some.weights
    f = trained.outputs(inputs)
    push = law.residual(f, some.batch.targets) - w * law.residual(f, some.targets)
    curvature = law.curvature(f)
    return Part(inputs, push, (1 - w).unsqueeze(-1) * curvature, some.touched.unsqueeze(-1) * curvature)


def new_target(given: Any, old: Tensor) -> Tensor:
    """A target in place of another: of its shape and type, or an error where it is no such number."""
    wanted = f"{'numbers' if old.is_floating_point() else 'a label, a whole number'}, shaped as before"
    try:
        target = torch.as_tensor(given).to(old.device)
    except (TypeError, ValueError):
        raise expected("relabel", wanted, given) from None
    fits = target.numel() == old.numel() and (old.is_floating_point() or bool((target == target.to(old)).all()))
    require(fits, "relabel", wanted, given)
    return target.to(old).reshape(old.shape)


def _outcome(
    trained: FittedModel, batch: Batch, changed: Callable[[Batch, Tensor], tuple[Tensor, Tensor]]
) -> tuple[Tensor, ...]:
    """The columns of an `Outcome`, and JΔθ."""
    likelihood = trained.likelihood
    f = trained.outputs(batch.inputs)
    y = trained.targets(f, batch.targets)
    change, straight = changed(batch, f)
    after = f + change
    means, losses = (likelihood.mean(f), likelihood.mean(after)), (likelihood.loss(f, y), likelihood.loss(after, y))
    return (batch.ids.cpu(), *(c.double().cpu() for c in (f, change, *means, *losses, straight)))
