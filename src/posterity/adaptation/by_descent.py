"""Adapting a network: descent on the new data, the past and the prior, from the old weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import nn

from posterity.adaptation.carrying import carried, fits
from posterity.adaptation.combined import labels_of
from posterity.adaptation.lost_classes import lost_classes, without_classes
from posterity.adaptation.past import Past, joined
from posterity.adaptation.penalty import Penalty
from posterity.adaptation.quadratic import Quadratic
from posterity.adaptation.replay import NewData
from posterity.adaptation.situation import Outcome, Situation
from posterity.errors import require, require_positive, require_whole
from posterity.learning.seeding import own_randomness, seed_step
from posterity.noise import seeded
from posterity.posterior import Memory
from posterity.progress import track
from posterity.trees import only_trainable, trainable

EPOCHS, STEPS = 20, 500  # at least, unless told otherwise


@dataclass(frozen=True)
class Settings:
    """How a network is trained.

    Args:
        epochs: Passes over the new data, or over the memory where nothing is added; by default 20, or as many more as
            it takes to make 500 steps.
        batch_size: New examples, and memory examples, a step.
        lr: Learning rate of Adam, which falls to zero along a cosine.
        clip: Largest norm of the gradient of the mean loss.
        seed: Of everything random.
    """

    epochs: int | None = None
    batch_size: int = 128
    lr: float = 1e-3
    clip: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        require_whole("epochs", 1 if self.epochs is None else self.epochs)
        require_whole("batch_size", self.batch_size)
        require_positive("lr", self.lr)
        require(isinstance(self.seed, Integral), "seed", "a whole number", self.seed)
        if self.clip is not None:
            require_positive("clip", self.clip)

    def steps(self, rows: int) -> int:
        """Steps on so many examples."""
        each = max(1, -(-rows // self.batch_size))
        return max(EPOCHS * each, STEPS) if self.epochs is None else self.epochs * each


def descend(model: nn.Module, objective: Penalty, steps: int, settings: Settings) -> None:
    """Minimise a penalty, in place: Adam on its value on the mean scale."""
    parameters = list(trainable(model).values())
    device = parameters[0].device
    optimizer = torch.optim.Adam(parameters, lr=settings.lr)
    _train(model)
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


def _train(model: nn.Module) -> None:
    """Training mode, but for layers with running statistics: those of a few new examples would not be those of all."""
    model.train()
    for module in model.modules():
        if getattr(module, "running_mean", None) is not None:
            module.eval()


def by_descent(situation: Situation, settings: Settings, method: str) -> Outcome:
    """A network that has learnt the new data and the past together, from the old weights."""
    with only_trainable(situation.new, situation.prior.names):
        return _by_descent(situation, settings, method)


def _by_descent(situation: Situation, settings: Settings, method: str) -> Outcome:
    model, change, posterior = situation.new, situation.change, situation.posterior
    past, lost = situation.past, lost_classes(situation)
    if len(lost):
        past = without_classes(situation, past, lost)
    past = carried(past, model)
    objective = past.penalty(posterior, settings.batch_size) + situation.scale * Quadratic(situation.prior)
    if change.added is not None:
        data = Memory.of(change.added)
        objective = objective + NewData(data, posterior.likelihood, batch_size=settings.batch_size)
    if method == "combined" and past.memory is not None and _descends(model, situation.old):
        objective = objective + labels_of(situation.old, past.memory, posterior, settings.batch_size)
    kept, new = (0 if part is None else len(part) for part in (past.memory, change.added))
    steps = settings.steps(new or kept)
    descend(model, objective.over(situation.n), steps, settings)
    looked_at = steps * (min(kept, settings.batch_size) + min(new, settings.batch_size))
    memory = _memory(situation, past, settings.seed)
    return Outcome(model, past, None, memory, False, steps, float(looked_at), None)


def _descends(new: nn.Module, old: nn.Module) -> bool:
    """Whether a network has the parameters of another, some perhaps with more rows: labels then have their balance."""
    before, there = dict(old.named_parameters()), dict(new.named_parameters())
    return there.keys() == before.keys() and all(fits(p, there[name]) for name, p in before.items())


def _memory(situation: Situation, past: Past, seed: int) -> Memory | None:
    """What is remembered afterwards: as large a share of the new data as of the old."""
    added, model = situation.change.added, situation.new
    memory = past.remembered(model)
    if added is None or memory is None:
        return memory
    share = len(memory) / max(situation.n - len(added), 1)
    count = min(len(added), max(1, round(share * len(added))))
    weights = torch.full((count,), len(added) / count)
    chosen = torch.randperm(len(added), generator=seeded(seed))[:count]
    return joined(memory, model, added.take(chosen), weights)
