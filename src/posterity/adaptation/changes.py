"""What is to change: examples added, removed or relabelled, more classes, another prior; checked first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from posterity.adaptation.groups import Others, picked
from posterity.adaptation.past import data_gradient
from posterity.adaptation.penalties.replay import pulled_back
from posterity.adaptation.transfer import fits, padded
from posterity.batches import Batch, batches, batches_of
from posterity.errors import InvalidInput, expected, require, require_positive
from posterity.likelihoods import Likelihood
from posterity.memory.ids import as_ids, unique
from posterity.memory.what_if import new_target
from posterity.posterior import Diagonal, Memory, Posterior
from posterity.trees import Tree, check_same_shapes

MOST_CLASSES = 2**24  # a larger number was mistyped: their outputs would not fit into memory
Remove = Tensor | Iterable[int] | Callable[[Batch], Tensor]


@dataclass(frozen=True, eq=False)
class Request:
    """What `adapt` was asked for; the arguments are explained there."""

    data: Any = None
    add: Any = None
    remove: Remove | None = None
    relabel: Mapping[int, Any] | None = None
    prior_precision: float | Diagonal | None = None
    classes: int | Sequence[str] | None = None
    into: nn.Module | None = None
    memory: Memory | int | None = None

    def __post_init__(self) -> None:
        asked = (self.add, self.remove, self.relabel or None, self.prior_precision, self.classes, self.into)
        require(any(part is not None for part in asked), "adapt", "something to change", "nothing")
        if self.relabel is not None:
            mapping = isinstance(self.relabel, Mapping)
            require(mapping, "relabel", "new targets by id, a mapping", type(self.relabel).__name__)
            as_ids("relabel", self.relabel)
        if self.into is not None:
            require(isinstance(self.into, nn.Module), "into", "a torch.nn.Module", type(self.into).__name__)


@dataclass(frozen=True, eq=False)
class Change:
    """A checked request.

    Args:
        added: New examples, and relabelled ones with their new targets.
        removed: Examples that go, and relabelled ones with their old targets.
        counts: How many examples each of these stands for: one, unless they were picked as a group in a memory. Of a
            past that was forgotten in part, where a memory has examples that count for less than one, as much.
        others: Then also what is known of the examples that they represent.
        new: Number of examples that were not there before.
        gone: Number of examples that are there no longer.
        classes: Number of outputs afterwards, None where they stay.
        class_names: Their names, if known.
    """

    added: Batch | None
    removed: Batch | None
    counts: Tensor
    others: Others | None
    new: int
    gone: int
    classes: int | None
    class_names: tuple[str, ...] | None

    @classmethod
    def of(
        cls, request: Request, posterior: Posterior, whole: Batch | None, memory: Memory | None, outputs: int
    ) -> Change:
        """The request, against the examples that can be looked up: all of them, or else those in the memory.

        Ids name examples. A function names a group; with a memory alone, the picked examples represent others.
        """
        known = whole if whole is not None or memory is None else memory.batch()
        count, names = _classes(posterior, request.classes, outputs)
        new = None if request.add is None else _fresh(request.add, posterior, known)
        gone = None if request.remove is None else _find(request.remove, known)
        held, others = None if whole is not None else memory, None
        counts = _counts(gone, held)
        if callable(request.remove) and whole is None and memory is not None and gone is not None:
            counts = memory.weights[torch.isin(memory.ids, gone.ids)].double().cpu()
            others = Others.of(request.remove, memory, posterior.likelihood)
        old, corrected = (None, None) if not request.relabel else _relabelled(request.relabel, known, gone)
        fewer = round(counts.sum().item())
        left = posterior.n + _size(new) - fewer
        require(left >= 1, "remove", "at least one example left", f"{left} of {posterior.n}")
        for batch, wide in ((known, outputs), (new, count or outputs), (corrected, count or outputs)):
            if batch is not None:
                _check_targets(posterior, batch.targets, wide)
        before = _counts(old, held)
        again = round(_size(old) - before.sum().item())  # with its new target an example counts as one
        removed, counts = _joined(gone, old), torch.cat((counts, before))
        return cls(_joined(new, corrected), removed, counts, others, _size(new) + again, fewer, count, names)

    def lost(self, model: nn.Module, likelihood: Likelihood, names: tuple[str, ...]) -> Tree:
        """Σ ∇ℓ at the model's weights of all that goes."""
        assert self.removed is not None
        total = data_gradient(model, self.removed, likelihood, names, self.counts.clamp(max=1.0))
        if self.others is None:
            return total
        unseen = pulled_back(model, self.others.inputs, self.others.residuals, names)
        return {name: g + unseen[name].to(g) for name, g in total.items()}


def everything(data: Any, posterior: Posterior) -> Batch:
    """All old data as one batch, if their number is the posterior's n."""
    stream = batches(data, batch_size=1024)
    require(stream.ids_known, "data", "ids with every example, or a loader that keeps the order", "a shuffled loader")
    whole = Batch.concatenate(list(stream))
    require(len(whole) == posterior.n, "data", f"the {posterior.n} examples of the posterior", f"{len(whole)} examples")
    unique(whole.ids)
    return whole


def changed_prior(posterior: Posterior, precision: float | Diagonal | None, like: Mapping[str, Tensor]) -> Diagonal:
    """The prior of the adapted posterior, over parameters shaped as `like`: the old one's precision unless given."""
    if isinstance(precision, Diagonal):
        check_same_shapes(precision.mean, like, "prior_precision")
        return precision.restrict(tuple(like))
    if precision is not None:
        require_positive("prior_precision", precision)
        return Diagonal.isotropic(like, float(precision))
    old = posterior.prior
    mean, width = {}, {}
    for name, t in like.items():
        if name in old.mean and old.mean[name].shape == t.shape:
            mean[name], width[name] = old.mean[name], old.precision[name]
        elif name in old.mean and fits(old.mean[name], t):  # more classes: what is known of the old ones stays
            mean[name] = padded(old.mean, like, [name])[name]
            width[name] = _with_rows(old.precision[name], old.mean[name], t)
        else:
            mean[name], width[name] = torch.zeros_like(t), _common(old.precision_diagonal().values()).to(t)
    return Diagonal(mean, width)


def _with_rows(precision: Tensor, mean: Tensor, like: Tensor) -> Tensor:
    """A precision with rows for outputs that are new: their mean, or the one number that there is."""
    if precision.ndim == 0:
        return precision
    wide = _common([precision]).to(precision).expand(like.shape).clone()
    wide[: len(mean)] = precision
    return wide


def _common(precisions: Iterable[Tensor]) -> Tensor:
    """One precision for weights that the old prior does not have: the mean of those it has."""
    return torch.cat([p.reshape(-1).double() for p in precisions]).mean()


def _classes(
    posterior: Posterior, classes: int | Sequence[str] | None, outputs: int
) -> tuple[int | None, tuple[str, ...] | None]:
    if classes is None:
        return None, posterior.class_names
    if not isinstance(classes, Integral | Iterable) or isinstance(classes, str):
        raise expected("classes", "how many there are afterwards, or a list of their names", classes)
    names = tuple(map(str, classes)) if isinstance(classes, Iterable) else None
    count = int(classes) if isinstance(classes, Integral) else len(classes)
    if names is None and count == outputs:
        names = posterior.class_names
    require(posterior.likelihood.has_class_axis, "classes", "a categorical likelihood", posterior.likelihood.name)
    require(count >= outputs, "classes", f"at least the {outputs} that there are", count)
    require(count <= MOST_CLASSES, "classes", f"at most {MOST_CLASSES}", count)
    if names is not None:
        require(len(set(names)) == len(names), "classes", "different names", names)
    if names is not None and posterior.class_names is not None:
        kept = names[:outputs] == posterior.class_names
        require(kept, "classes", f"the old names {posterior.class_names} first", names)
    return (count if count > outputs else None), names


def _fresh(add: Any, posterior: Posterior, known: Batch | None) -> Batch:
    """New examples; without ids of their own, they get the next free ones."""
    stream = batches_of("add", add, 1024)
    batch = Batch.concatenate(list(stream))
    if not stream.brings_ids:
        first = posterior.n if known is None else max(posterior.n, int(known.ids.max()) + 1)
        return Batch(batch.inputs, batch.targets, first + torch.arange(len(batch)))
    if known is not None:
        twice = batch.ids[torch.isin(batch.ids, known.ids)]
        require(len(twice) == 0, "ids of added examples", "new ones", twice[:3].tolist())
    unique(batch.ids)
    return batch


def _counts(batch: Batch | None, memory: Memory | None) -> Tensor:
    """How many examples each of these is by itself: one, or less than one where its weight in a memory is less."""
    counts = torch.ones(_size(batch), dtype=torch.float64)
    if batch is None or memory is None:
        return counts
    place = {int(i): row for row, i in enumerate(memory.ids.tolist())}
    rows = [place[int(i)] for i in batch.ids.tolist()]
    return torch.minimum(counts, memory.weights.double().cpu()[rows])


def _find(remove: Remove, known: Batch | None) -> Batch:
    """The examples that are meant, by id or by a function that picks them."""
    if known is None:
        raise expected("remove", "data or a memory beside it, to look the examples up", "neither")
    if callable(remove):
        rows = picked(remove, known).nonzero()[:, 0]
        require(len(rows) > 0, "remove", "a function that picks at least one example", "none picked")
        return known.take(rows)
    ids = as_ids("remove", remove)
    require(len(ids) > 0, "remove", "at least one id", "none")
    return _lookup(ids, known, "remove")


def _lookup(ids: Tensor, known: Batch, what: str) -> Batch:
    absent = ids[~torch.isin(ids, known.ids)]
    if len(absent):
        raise InvalidInput(f"{what}: expected ids that are in the data or the memory, got {absent[:5].tolist()}")
    place = {int(i): row for row, i in enumerate(known.ids.tolist())}
    return known.take(torch.tensor([place[int(i)] for i in ids]))


def _relabelled(relabel: Mapping[int, Any], known: Batch | None, gone: Batch | None) -> tuple[Batch, Batch]:
    """The same examples with their old and with their new targets."""
    if known is None:
        raise expected("relabel", "data or a memory beside it, to look the examples up", "neither")
    ids = torch.tensor([int(i) for i in relabel])
    old = _lookup(ids, known, "relabel")
    if gone is not None:
        both = ids[torch.isin(ids, gone.ids)]
        require(len(both) == 0, "relabel", "examples that are not removed", both[:3].tolist())
    targets = torch.stack([new_target(y, before) for y, before in zip(relabel.values(), old.targets)])
    return old, Batch(old.inputs, targets, ids)


def _check_targets(posterior: Posterior, targets: Tensor, outputs: int) -> None:
    if posterior.likelihood.has_class_axis and not targets.is_floating_point():
        top = int(targets.max())
        wanted = f"labels in 0..{outputs - 1}, or classes={top + 1} to declare new ones"
        require(top < outputs, "classes", wanted, f"label {top}")
    posterior.likelihood.check(torch.zeros((), device=targets.device).expand(len(targets), outputs), targets)


def _joined(a: Batch | None, b: Batch | None) -> Batch | None:
    parts = [part for part in (a, b) if part is not None]
    return Batch.concatenate(parts) if parts else None


def _size(batch: Batch | None) -> int:
    return 0 if batch is None else len(batch)
