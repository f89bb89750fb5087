"""Adapting a network whose old data are given: training on the corrected data, from the old weights or a part of them.

    θ ← θ − ρ Adam( Σ_i ℓ_i(θ) / N + (τ/N) P₀ (θ − m₀) ),    i over the present data

A network whose means no prior has pulled was held by the length of its training and by noise in its weights. It trains
for a share of that length, with noise as wide as the old posterior: θ + σε in place of θ where gradients are taken.
Where new weights make up most of the start, the noise grows, as it does in a first training. Others take half of the
steps first. The other half follows if the objective of retraining, loss over all data and prior, has fallen. The
weights with the lowest objective are kept, those before included.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from posterity.adaptation.past import Past
from posterity.adaptation.penalties.kprior import outputs_of
from posterity.adaptation.problem import AdaptationProblem, Solved
from posterity.adaptation.report import objective
from posterity.adaptation.solve.removed_classes import removed_classes, shrink, silence
from posterity.adaptation.solve.schedule import BATCH, Schedule, noisier
from posterity.adaptation.solve.training import Adam, Settings, memory_after, training_mode
from posterity.adaptation.transfer import carried, fits, padded
from posterity.batches import Batch
from posterity.inputs import call, move, take
from posterity.learning.seeding import own_randomness, seed_step
from posterity.learning.starts import reinitialised
from posterity.likelihoods import Likelihood
from posterity.noise import LARGE, Key, normal, seeded, seeded_apart
from posterity.posterior import Diagonal
from posterity.progress import track
from posterity.startup import step_of
from posterity.trees import Tree, only_trainable, snapshot, trainable

SEEN = 8  # changed examples in every batch, where there are so many
LOOKED_AT = 8192  # examples that tell whether the objective falls
FOREVER = 1_000_000_000
FELL = 1e-3  # share of the objective below which it counts as no longer falling
MOSTLY_NEW = 0.5  # share of the old weights below which nothing has to be undone in them
AT_ONCE = 2 * LARGE  # normals that are drawn at a time


@dataclass(frozen=True, eq=False)
class Corrected:
    """The objective of retraining.

    Args:
        data: All present examples; the changed ones come last.
        changed: How many of them are new or have new targets.
        likelihood: What the outputs mean.
        prior: The prior.
        scale: n/ess, which untempers its precision.
        weights: How much each example counts in training; 1 unless given.
        widths: Standard deviations of the noise in the weights, by name; none where training has none.
    """

    data: Batch
    changed: int
    likelihood: Likelihood
    prior: Diagonal
    scale: float
    weights: Tensor | None = None
    widths: Tree = field(default_factory=dict)

    @classmethod
    def of(cls, problem: AdaptationProblem) -> Corrected:
        """The objective after a change, where all data are given."""
        data, added = problem.all_data(), problem.change.added
        assert data is not None
        changed = 0 if added is None else len(added)
        widths = {}
        if problem.widths_alone():  # trained with noise before
            there = dict(problem.new.named_parameters())
            less = noisier(problem) ** -0.5  # weights are as uncertain as the targets are noisy
            std = {name: less * v.sqrt() for name, v in problem.posterior.variance.items() if name in there}
            known = padded(std, there, [name for name, s in std.items() if fits(s, there[name])])
            # rows of new classes as wide as the others are
            widths = {name: torch.where(s > 0, s, std[name].square().mean().sqrt().to(s)) for name, s in known.items()}
        return cls(data, changed, problem.posterior.likelihood, problem.pulling, problem.scale, widths=widths)

    def batches(self, size: int, steps: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows of each batch, and the share of all data that each of them represents.

        Changed examples that are few are in every batch, with a share that keeps the gradient unbiased.
        """
        n, few = len(self.data), min(self.changed, SEEN, size - 1)
        generator = seeded(seed)
        if few == 0 or size * self.changed >= few * n or self.changed == n:
            for rows in _passes(n, min(size, n), steps, generator):
                yield rows, torch.full((len(rows),), 1 / len(rows))
            return
        kept = n - self.changed
        old = min(size - few, kept)
        shares = torch.cat((torch.full((old,), kept / n / old), torch.full((few,), self.changed / n / few)))
        for rows, new in zip(_passes(kept, old, steps, generator), _passes(self.changed, few, steps, generator)):
            yield torch.cat((rows, kept + new)), shares

    def losses(self, model: nn.Module, rows: Tensor) -> Tensor:
        """The loss of each example in some rows."""
        device = next(model.parameters()).device
        y = self.data.targets[rows.to(self.data.targets.device)].to(device)
        f = call(model, move(take(self.data.inputs, rows), device))
        losses = self.likelihood.loss(f, y.to(f.dtype) if y.is_floating_point() else y)
        return losses if self.weights is None else self.weights[rows].to(losses) * losses

    def value(self, model: nn.Module) -> float:
        """The objective, over all data or over examples that represent them."""
        if len(self.data) <= LOOKED_AT:
            return objective(model, self.data, self.likelihood, self.prior, self.scale)
        rows = torch.randperm(len(self.data), generator=seeded_apart(0))[:LOOKED_AT]
        part = self.data.take(rows)
        each = len(self.data) / LOOKED_AT
        return each * objective(model, part, self.likelihood, self.prior, self.scale / each)


def _passes(n: int, size: int, steps: int, generator: torch.Generator) -> Iterator[Tensor]:
    """So many batches of rows, pass after pass in a random order; the rest of a pass is dropped."""
    order: tuple[Tensor, ...] = ()
    for step in range(steps):
        each = n // size
        if step % each == 0:
            order = torch.randperm(n, generator=generator)[: each * size].split(size)
        yield order[step % each]


def warm_start(problem: AdaptationProblem, past: Past, settings: Settings) -> Solved:
    """A network trained on the corrected data."""
    model, task = problem.new, Corrected.of(problem)
    data = task.data
    lost = removed_classes(problem, past)
    schedule = Schedule.of(problem, len(data), len(lost) > 0, settings)
    set_out(problem, schedule, settings.seed)
    if len(lost) and schedule.kept > MOSTLY_NEW:  # otherwise training teaches it, as it does from the start
        silence(problem, outputs_of(problem.old, data.take(torch.arange(min(len(data), 1024)))), lost)
    with only_trainable(model, problem.prior.names):
        steps = descend(model, task, schedule, settings.seed, settings.clip)
        past = carried(past, model)
        memory = memory_after(problem, past, settings.seed)
    looked_at = float(steps * min(schedule.batch_size, len(data)))
    return Solved(model, past, None, memory, False, steps, looked_at, None, schedule.training)


@torch.no_grad()
def set_out(problem: AdaptationProblem, schedule: Schedule, seed: int) -> None:
    """Bring the weights nearer to where training started, in place: the prior's mean, or new weights."""
    if not problem.widths_alone():
        shrink(problem, schedule.kept)
    elif schedule.kept < 1:
        fresh = reinitialised(problem.new, seed, 1, partly=True)
        there, new = dict(problem.new.named_parameters()), dict(fresh.named_parameters())
        for name in problem.prior.mean:
            there[name].lerp_(new[name], 1 - schedule.kept)


def descend(model: nn.Module, task: Corrected, schedule: Schedule, seed: int, clip: float | None = None) -> int:
    """Lower the objective, in place; returns the number of steps taken."""
    there = trainable(model)
    adam = Adam(list(there.values()), schedule.lr, clip)
    if not schedule.halves:
        _train(model, adam, task, schedule, seed)
        return schedule.steps
    best, lowest, taken = snapshot(there), task.value(model), 0
    first = -(-schedule.steps // 2)
    for steps in (first, schedule.steps - first):
        part = replace(schedule, steps=steps)
        _train(model, adam, task, part, seed + taken)
        taken += steps
        value = task.value(model)
        fell = value < lowest - FELL * abs(lowest)
        if value < lowest:
            best, lowest = snapshot(there), value
        if not fell:
            break
    with torch.no_grad():
        for name, p in there.items():
            p.copy_(best[name])
    return taken


def train_on(model: nn.Module, task: Corrected, schedule: Schedule, seed: int) -> None:
    """All steps of a schedule, in place, even where the objective rises."""
    _train(model, Adam(list(trainable(model).values()), schedule.lr), task, schedule, seed)


def _train(model: nn.Module, adam: Adam, task: Corrected, schedule: Schedule, seed: int) -> None:
    """Some steps of Adam, at a rate that falls to zero."""
    there = trainable(model)
    n, steps, device = len(task.data), schedule.steps, adam.parameters[0].device
    pulled = []
    for name, m in task.prior.mean.items():
        precision = task.scale / n * task.prior.precision[name]
        if name in there and bool(precision.any()):  # a prior that decides widths alone pulls nothing
            pulled.append((there[name], m.to(there[name]), precision.to(there[name])))
    noise = _Noise.of(there, task.widths, seed)
    training_mode(model, statistics=schedule.anew)
    with own_randomness(device):
        order = task.batches(schedule.batch_size, steps, seed)
        for step, (rows, shares) in enumerate(track(order, "adapt", total=steps)):
            seed_step(seed, step, device)
            adam.begin(step / steps)
            with noise.at(step, schedule.kept + (1 - schedule.kept) * (step / steps) ** 0.5):
                losses = task.losses(model, rows)
                (shares.to(losses) * losses).sum().backward()
            with torch.no_grad():
                for p, m, precision in pulled:
                    if p.grad is not None:
                        p.grad.addcmul_(p - m, precision)
            adam.step()
    model.eval()


class _Noise:
    """θ + σε in place of θ where gradients are taken, ε from the counter.

    Draws for many steps are made at a time, which is cheaper: with k steps in a draw, that of weight j in step s has
    the key (seed, 1 + s // k) and the index (s % k) W + j, W the number of weights.

    Args:
        parameters: What is shifted.
        std: σ, flat, in their order.
        seed: Of the noise.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], std: Tensor, seed: int) -> None:
        self.parameters: list[Tensor] = list(parameters)
        self.std, self.seed = std, seed
        self.each = max(1, AT_ONCE // max(1, len(std)))
        self.drawn = std.new_empty(0)

    @classmethod
    def of(cls, there: Mapping[str, nn.Parameter], widths: Tree, seed: int) -> _Noise:
        """The noise of some weights, by name; those that are not there have none."""
        known = [name for name in widths if name in there]
        flat = [widths[name].to(there[name].device, torch.float32).expand_as(there[name]).flatten() for name in known]
        return cls([there[name] for name in known], torch.cat(flat) if flat else torch.empty(0), seed)

    @contextmanager
    def at(self, step: int, share: float) -> Iterator[None]:
        """Other weights for a while, those of one step, with noise of a share of its width."""
        if not self.parameters:
            yield
            return
        block, place = divmod(step, self.each)
        if place == 0:
            count = self.each * len(self.std)
            drawn = normal(Key(self.seed, 1 + block), count, device=self.std.device)
            self.drawn = drawn.view(self.each, len(self.std)).mul_(self.std)
        sizes = [p.numel() for p in self.parameters]
        parts = self.drawn[place].split(sizes)
        shift = [part.view_as(p).to(p.dtype) for part, p in zip(parts, self.parameters)]
        with torch.no_grad():
            torch._foreach_add_(self.parameters, shift, alpha=share)
        yield
        with torch.no_grad():
            torch._foreach_sub_(self.parameters, shift, alpha=share)


def plain_warm_start(model: nn.Module, task: Corrected, seconds: float, seed: int) -> nn.Module:
    """What anybody would try first: AdamW at its defaults, from the old weights, for so many processor seconds."""
    model = copy.deepcopy(model)
    adam = torch.optim.AdamW(list(trainable(model).values()))
    take = step_of(adam)
    device, started = next(model.parameters()).device, time.process_time()
    training_mode(model)
    with own_randomness(device):
        seed_step(seed, 0, device)
        for rows, _ in Corrected.batches(replace(task, changed=0), BATCH, FOREVER, seed):
            if time.process_time() - started >= seconds:
                break
            adam.zero_grad(set_to_none=True)
            task.losses(model, rows).mean().backward()
            take()
    return model.eval()
