"""Adapting a network: descent on the new data, the past and the prior, from the old weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posterity.adaptation.combined import labels_of
from posterity.adaptation.lost_classes import lost_classes, without_classes
from posterity.adaptation.past import Past, joined, refreshed, rows_of_batch
from posterity.adaptation.penalty import Penalty
from posterity.adaptation.quadratic import Quadratic
from posterity.adaptation.remainder import beyond, covers_all, memory_diagonal, memory_matrix
from posterity.adaptation.replay import NewData
from posterity.adaptation.situation import Outcome, Situation
from posterity.errors import require, require_positive
from posterity.learning.seeding import own_randomness, seed_step
from posterity.posterior import Diagonal, Full, Memory, Structure
from posterity.progress import track
from posterity.trees import Tree, snapshot, to_vector, trainable


@dataclass(frozen=True)
class Settings:
    """How a network is trained.

    Args:
        epochs: Passes over the new data, or over the memory where nothing is added.
        batch_size: New examples, and memory examples, a step.
        lr: Learning rate of Adam, which falls to zero along a cosine.
        clip: Largest norm of the gradient of the mean loss.
        seed: Of everything random.
    """

    epochs: int = 20
    batch_size: int = 128
    lr: float = 1e-3
    clip: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            require(getattr(self, name) >= 1, name, "an integer >= 1", getattr(self, name))
        require_positive("lr", self.lr)
        if self.clip is not None:
            require_positive("clip", self.clip)


def descend(model: nn.Module, objective: Penalty, steps: int, settings: Settings) -> None:
    """Minimise a penalty, in place: Adam on its value on the mean scale."""
    parameters = list(trainable(model).values())
    device = parameters[0].device
    optimizer = torch.optim.Adam(parameters, lr=settings.lr)
    model.train()
    with own_randomness(device):
        for step in track(range(steps), "adapt"):
            seed_step(settings.seed, step, device)
            for group in optimizer.param_groups:
                group["lr"] = settings.lr * 0.5 * (1 + math.cos(math.pi * step / steps))
            optimizer.zero_grad(set_to_none=True)
            objective.penalty(model).backward()
            if settings.clip is not None:
                nn.utils.clip_grad_norm_(parameters, settings.clip)
            optimizer.step()
    model.eval()


def by_descent(situation: Situation, settings: Settings, method: str) -> Outcome:
    """A network that has learnt the new data and the past together, from the old weights."""
    model, change, posterior = situation.new, situation.change, situation.posterior
    past, lost = situation.past, lost_classes(situation)
    if len(lost):
        past = without_classes(situation, past, lost)
    past = carried(past, model)
    objective = past.penalty(posterior, settings.batch_size) + situation.scale * Quadratic(situation.prior)
    if change.added is not None:
        new = Memory(change.added.inputs, change.added.targets, change.added.ids)
        objective = objective + NewData(new, posterior.likelihood, batch_size=settings.batch_size)
    if method == "combined" and past.memory is not None and _descends(model, situation.old):
        objective = objective + labels_of(situation.old, past.memory, posterior, settings.batch_size)
    rows = 0 if past.memory is None else len(past.memory)
    steps = settings.epochs * max(1, -(-(rows if change.added is None else len(change.added)) // settings.batch_size))
    descend(model, objective.over(situation.n), steps, settings)
    looked_at = steps * (min(rows, settings.batch_size) + (0 if change.added is None else settings.batch_size))
    structure = _structure(situation, past)
    return Outcome(model, structure, _memory(situation, past), False, steps, float(looked_at), None)


def _descends(new: nn.Module, old: nn.Module) -> bool:
    """Whether a network has the parameters of another, some perhaps with more rows: labels then have their balance."""
    there = trainable(new)
    return there.keys() == trainable(old).keys() and all(_fits(p, there[name]) for name, p in trainable(old).items())


def _structure(situation: Situation, past: Past) -> Structure:
    """The Gaussian at the new weights: remainder, prior, and the curvature of memory and new data as it is now."""
    model, likelihood, added = situation.new, situation.posterior.likelihood, situation.change.added
    mean = snapshot(trainable(model))
    data = [] if past.memory is None else [past.memory]
    data += [] if added is None else [Memory(added.inputs, added.targets, added.ids)]
    prior = {name: situation.scale * p for name, p in situation.prior.precision_diagonal().items()}
    if isinstance(past.rest, Full):
        matrix = past.rest.precision + to_vector(prior).to(past.rest.precision).diag()
        for part in data:
            matrix = matrix + memory_matrix(model, part, likelihood, past.rest.names).to(matrix)
        return Full(mean, matrix / situation.scale)
    trees = [memory_diagonal(model, part, likelihood) for part in data] + [past.rest.precision_diagonal()]
    trees.append(_sharpness(situation))
    for tree in trees:
        prior = {name: p + tree[name].to(p) if name in tree else p for name, p in prior.items()}
    return Diagonal(mean, {name: p / situation.scale for name, p in prior.items()})


def _sharpness(situation: Situation) -> Tree:
    """What an optimizer's precision has beyond the curvature of all its data at the mean, for the share that stays.

    IVON averages over draws around the mean, where a network that fits is far more curved than at the mean itself.
    A remainder holds this too; where the memory is all data there is none.
    """
    posterior, memory, there = situation.posterior, situation.memory, trainable(situation.new)
    if not (isinstance(posterior.structure, Diagonal) and covers_all(posterior, memory)):
        return {}
    stays = 1 - situation.change.gone / posterior.n
    found = beyond(situation.old, posterior, memory)
    names = [name for name, h in found.items() if name in there and _fits(h, there[name])]
    return {name: stays * h for name, h in _padded(found, there, names).items()}


def _memory(situation: Situation, past: Past) -> Memory | None:
    """What is remembered afterwards: as large a share of the new data as of the old."""
    added, model = situation.change.added, situation.new
    memory = None if past.memory is None else refreshed(past.memory, model)
    if added is None or memory is None:
        return memory
    share = len(memory) / max(situation.n - len(added), 1)
    count = min(len(added), max(1, round(share * len(added))))
    weights = torch.full((count,), len(added) / count)
    chosen = torch.randperm(len(added), generator=torch.Generator().manual_seed(situation.n))[:count]
    return joined(memory, model, rows_of_batch(added, chosen), weights)


def carried(past: Past, model: nn.Module) -> Past:
    """The past in terms of another network: what it says about parameters that are there too, and about old outputs."""
    there = trainable(model)
    names = [name for name in past.rest.names if name in there and _fits(past.rest.mean[name], there[name])]
    if isinstance(past.rest, Full) and all(n in there and there[n].shape == m.shape for n, m in past.rest.mean.items()):
        return past
    width = past.rest.precision_diagonal()
    rest = Diagonal(_padded(past.rest.mean, there, names), _padded(width, there, names)) if names else _nothing(there)
    return Past(past.memory, rest, _padded(past.pull, there, names))


def _fits(old: Tensor, new: Tensor) -> bool:
    """The same shape, or one with more rows."""
    return old.ndim == new.ndim and old.shape[1:] == new.shape[1:] and old.shape[:1] <= new.shape[:1]


def _padded(tree: Tree, like: dict[str, nn.Parameter], names: list[str]) -> Tree:
    """Zeros for the rows that are new."""
    found = {}
    for name in names:
        wide = torch.zeros_like(like[name], requires_grad=False)
        wide[(slice(len(tree[name])),) if wide.ndim else ()] = tree[name].to(wide)
        found[name] = wide
    return found


def _nothing(like: dict[str, nn.Parameter]) -> Diagonal:
    return Diagonal({n: torch.zeros_like(p) for n, p in like.items()}, {n: torch.zeros(()) for n in like})
