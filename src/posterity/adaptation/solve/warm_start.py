"""Adapting a network whose old data are given: training on the corrected data, from the old weights.

    θ ← θ − ρ Adam( Σ_i ℓ_i(θ) / N + (τ/N) P₀ (θ − m₀) ),    i over the present data

A network whose means no prior has pulled was held by the length of its training and by noise in its weights. It trains
for a share of that length, with noise as wide as the old posterior: θ + σε in place of θ where gradients are taken.
Others take half of the steps first. The other half follows if the objective of retraining, loss over all data and
prior, has fallen. The weights with the lowest objective are kept, those before included.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from posterity.adaptation.past import Past
from posterity.adaptation.penalties.kprior import outputs_of
from posterity.adaptation.problem import AdaptationProblem, Solved
from posterity.adaptation.report import objective
from posterity.adaptation.solve.removed_classes import KEPT as KEPT_OF_OTHERS
from posterity.adaptation.solve.removed_classes import removed_classes, shrink, silence
from posterity.adaptation.solve.training import Settings, memory_after, training_mode
from posterity.adaptation.transfer import carried, fits, padded
from posterity.batches import Batch
from posterity.inputs import call, move, take
from posterity.learning.folds import stacks
from posterity.learning.learners.variational import VariationalLearner
from posterity.learning.seeding import own_randomness, seed_step
from posterity.likelihoods import Likelihood
from posterity.noise import seeded
from posterity.posterior import Diagonal, Training
from posterity.progress import track
from posterity.trees import Tree, only_trainable, snapshot, trainable

# Networks whose training is known: shares of its length, chosen on four sets of at most 1500 examples, seed 10.
SMALL_SHARE, LARGE_SHARE, SHRUNK_SHARE = 0.05, 0.4, 0.7
SMALL_FACTOR = 0.3  # of the learning rate, for a single example
KEPT = 0.6  # of the weights of a perceptron, before a large change
# Others: lengths chosen on digits and USPS with the seeds 10 and 11.
SMALL_STEPS, LARGE_STEPS, LARGE_EPOCHS = 100, 250, 5
SMALL_RATE, LARGE_RATE = 1e-3, 3e-3
LARGE = 0.08  # share of the data from which on a change counts as large
BATCH = 64
SEEN = 8  # changed examples in every batch, where there are so many
LOOKED_AT = 8192  # examples that tell whether the objective falls
FOREVER = 1_000_000_000
FELL = 1e-3  # share of the objective below which it counts as no longer falling


@dataclass(frozen=True)
class Schedule:
    """How long to train, how fast and on how many examples at a time.

    Args:
        steps: Steps of Adam.
        lr: Learning rate.
        batch_size: Examples a step.
        kept: How much of the weights to set out from.
        halves: Whether to take the second half of the steps only if the first has lowered the objective.
        anew: Whether the weights are new: then running statistics are learnt with them.
    """

    steps: int
    lr: float
    batch_size: int
    kept: float = 1.0
    halves: bool = True
    anew: bool = False

    @classmethod
    def of(cls, problem: AdaptationProblem, rows: int, lost: bool, settings: Settings) -> Schedule:
        """What a change of this size needs; explicit settings override it.

        A change below 8 % of the data takes a share of the steps and a smaller rate: a large rate over few steps moves
        weights that had no reason to move. So does a large rate where a class is lost, whose output is silenced first.
        """
        change, training = problem.change, problem.posterior.training if problem.widths_alone() else None
        batch_size = settings.batch_size or (BATCH if training is None else training.batch_size)
        touched = [batch.ids.cpu() for batch in (change.added, change.removed) if batch is not None]
        changed = len(torch.cat(touched).unique()) if touched else 0  # what gets another label has one id
        otherwise = change.classes is not None or problem.other_prior()
        size = 1.0 if otherwise else min(1.0, changed / (LARGE * rows))
        each = -(-rows // batch_size)
        if training is not None:
            found = cls._like(training, problem, each, size, batch_size)
        else:
            large = max(LARGE_STEPS, LARGE_EPOCHS * each) * (1 if change.classes is None else 2)
            lr = SMALL_RATE + (0.0 if lost else size) * (LARGE_RATE - SMALL_RATE)
            kept = KEPT_OF_OTHERS if lost else 1.0
            found = cls(round(SMALL_STEPS + size * (large - SMALL_STEPS)), lr, batch_size, kept)
        steps = settings.epochs * each if settings.epochs else found.steps
        return replace(found, steps=steps, lr=settings.lr or found.lr)

    @classmethod
    def _like(cls, training: Training, problem: AdaptationProblem, each: int, size: float, batch_size: int) -> Schedule:
        """A share of the old training, which was as long as it could be without memorising its data.

        A perceptron that classifies sets out from smaller weights and trains longer: its decisions stay, it becomes
        less sure of them, and what it then learns is nearer to what new weights would. Not so where labels go that it
        contradicts: these have kept it less sure than it will be, and its training short, so that it takes as long
        again.
        """
        model = problem.new
        shrinks = stacks(model) and problem.posterior.likelihood.has_class_axis
        wrong = _contradicted(problem) if shrinks else 0.0
        most = SHRUNK_SHARE + (1 - SHRUNK_SHARE) * wrong if shrinks else LARGE_SHARE
        share = SMALL_SHARE + size * (most - SMALL_SHARE)
        lr = training.lr or VariationalLearner.usual_lr(model)
        return cls(
            steps=max(1, round(share * training.epochs * each)),
            lr=lr * (SMALL_FACTOR + size * (1 - SMALL_FACTOR)),
            batch_size=batch_size,
            kept=1 - size * (1 - KEPT) * (1 - wrong) if shrinks else 1.0,
            halves=False,
        )


def _contradicted(problem: AdaptationProblem) -> float:
    """The share of the targets to be removed that the old model does not predict."""
    gone, likelihood = problem.change.removed, problem.posterior.likelihood
    right = None if gone is None else likelihood.correct(outputs_of(problem.old, gone), gone.targets)
    return 0.0 if right is None else 1 - right.double().mean().item()


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
            std = {name: v.sqrt() for name, v in problem.posterior.variance.items() if name in there}
            widths = padded(std, there, [name for name, s in std.items() if fits(s, there[name])])
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
        rows = torch.randperm(len(self.data), generator=seeded(0))[:LOOKED_AT]
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
    """A network trained on the corrected data, from the old weights."""
    model, task = problem.new, Corrected.of(problem)
    data = task.data
    lost = removed_classes(problem, past)
    schedule = Schedule.of(problem, len(data), len(lost) > 0, settings)
    shrink(problem, schedule.kept)
    if len(lost):
        silence(problem, outputs_of(problem.old, data.take(torch.arange(min(len(data), 1024)))), lost)
    with only_trainable(model, problem.prior.names):
        steps = descend(model, task, schedule, settings.seed, settings.clip)
        past = carried(past, model)
        memory = memory_after(problem, past, settings.seed)
    looked_at = float(steps * min(schedule.batch_size, len(data)))
    return Solved(model, past, None, memory, False, steps, looked_at, None)


def descend(model: nn.Module, task: Corrected, schedule: Schedule, seed: int, clip: float | None = None) -> int:
    """Lower the objective, in place; returns the number of steps taken."""
    there = trainable(model)
    adam = _adam(list(there.values()), schedule.lr)
    if not schedule.halves:
        _train(model, adam, task, schedule, seed, clip)
        return schedule.steps
    best, lowest, taken = snapshot(there), task.value(model), 0
    first = -(-schedule.steps // 2)
    for steps in (first, schedule.steps - first):
        part = replace(schedule, steps=steps)
        _train(model, adam, task, part, seed + taken, clip)
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


def _adam(parameters: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """Adam in one kernel where there is one: on small networks it is most of a step otherwise."""
    fused = all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in parameters)
    return torch.optim.Adam(parameters, lr=lr, fused=fused)


def train_on(model: nn.Module, task: Corrected, schedule: Schedule, seed: int) -> None:
    """All steps of a schedule, in place, even where the objective rises."""
    adam = _adam(list(trainable(model).values()), schedule.lr)
    _train(model, adam, task, schedule, seed, None)


def _train(
    model: nn.Module, adam: torch.optim.Optimizer, task: Corrected, schedule: Schedule, seed: int, clip: float | None
) -> None:
    """Some steps of Adam, at a rate that falls to zero along a cosine."""
    there = trainable(model)
    parameters, n, steps = list(there.values()), len(task.data), schedule.steps
    device = parameters[0].device
    known = {name: p for name, p in there.items() if name in task.prior.mean}
    centre = [task.prior.mean[name].to(p) for name, p in known.items()]
    pull = [(task.scale / n * task.prior.precision[name]).to(p) for name, p in known.items()]
    training_mode(model, statistics=schedule.anew)
    with own_randomness(device):
        order = task.batches(schedule.batch_size, steps, seed)
        for step, (rows, shares) in enumerate(track(order, "adapt", total=steps)):
            seed_step(seed, step, device)
            for group in adam.param_groups:
                group["lr"] = schedule.lr * 0.5 * (1 + math.cos(math.pi * step / steps))
            adam.zero_grad(set_to_none=True)
            noise = {name: torch.randn_like(there[name]) * std for name, std in task.widths.items() if name in there}
            _shift(there, noise, 1)
            losses = task.losses(model, rows)
            (shares.to(losses) * losses).sum().backward()
            _shift(there, noise, -1)
            with torch.no_grad():
                for p, m, precision in zip(known.values(), centre, pull):
                    if p.grad is not None:
                        p.grad.addcmul_(p - m, precision)
            if clip is not None:
                nn.utils.clip_grad_norm_(parameters, clip)
            adam.step()
    model.eval()


@torch.no_grad()
def _shift(there: Mapping[str, nn.Parameter], noise: Tree, sign: int) -> None:
    for name, step in noise.items():
        there[name].add_(step, alpha=sign)


def plain_warm_start(model: nn.Module, task: Corrected, seconds: float, seed: int) -> nn.Module:
    """What anybody would try first: AdamW at its defaults, from the old weights, for so many processor seconds."""
    model = copy.deepcopy(model)
    adam = torch.optim.AdamW(list(trainable(model).values()))
    device, started = next(model.parameters()).device, time.process_time()
    training_mode(model)
    with own_randomness(device):
        seed_step(seed, 0, device)
        for rows, _ in Corrected.batches(replace(task, changed=0), BATCH, FOREVER, seed):
            if time.process_time() - started >= seconds:
                break
            adam.zero_grad(set_to_none=True)
            task.losses(model, rows).mean().backward()
            adam.step()
    return model.eval()
