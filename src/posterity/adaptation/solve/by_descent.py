"""Adapting a network: descent on the new data, the past and the prior, from the old weights."""

from __future__ import annotations

from dataclasses import replace

from torch import nn
from torch.nn.utils import parameters_to_vector

from posterity.adaptation.past import Past
from posterity.adaptation.penalties.combined import labels_of
from posterity.adaptation.penalties.penalty import Penalty
from posterity.adaptation.penalties.replay import NewData
from posterity.adaptation.problem import AdaptationProblem, Solved
from posterity.adaptation.solve.removed_classes import removed_classes, without_classes
from posterity.adaptation.solve.training import Adam, Settings, memory_after, training_mode
from posterity.adaptation.transfer import carried, fits
from posterity.learning.learners.variational import VariationalLearner
from posterity.learning.seeding import own_randomness, seed_step
from posterity.posterior import Memory
from posterity.progress import track
from posterity.trees import only_trainable, trainable

EPOCHS, STEPS = 20, 500  # at least, unless told otherwise
BATCH, RATE = 128, 1e-3
ROUNDS, FASTER, STRAIGHT = 4, 3.0, 0.5  # rounds at most, the factor of the rate between them, and what asks for another


def steps_on(rows: int, settings: Settings) -> int:
    """Steps over so many examples: by default 20 passes, or more until there are 500 steps."""
    each = max(1, -(-rows // (settings.batch_size or BATCH)))
    return max(EPOCHS * each, STEPS) if settings.epochs is None else settings.epochs * each


def descend(model: nn.Module, objective: Penalty, steps: int, settings: Settings) -> None:
    """Minimise a penalty, in place: Adam on its value on the mean scale."""
    lr = settings.lr or RATE
    parameters = list(trainable(model).values())
    device = parameters[0].device
    adam = Adam(parameters, lr, settings.clip)
    training_mode(model)
    with own_randomness(device):
        for step in track(range(steps), "adapt"):
            seed_step(settings.seed, step, device)
            adam.begin(step / steps)
            objective.penalty(model).backward()
            adam.step()
    model.eval()


def settle(model: nn.Module, objective: Penalty, steps: int, settings: Settings) -> int:
    """Descend in place, and again with three times the rate where the weights were still on their way.

    Adam moves a weight by about the rate a step, over the cosine by ½ lr × steps. Weights that moved more than half
    as far in root mean square went straight on, not around a minimum: new labels contradict the old ones, say.

    Returns:
        All steps taken.
    """
    if settings.lr is not None or settings.epochs is not None:  # as asked for
        descend(model, objective, steps, settings)
        return steps
    parameters = list(trainable(model).values())
    for taken in range(1, ROUNDS + 1):
        lr = RATE * FASTER ** (taken - 1)
        before = parameters_to_vector(parameters).detach()
        descend(model, objective, steps, replace(settings, lr=lr))
        moved = (parameters_to_vector(parameters).detach() - before).square().mean().sqrt()
        if not moved > STRAIGHT * 0.5 * lr * steps:
            break
    return taken * steps


def by_descent(problem: AdaptationProblem, past: Past, settings: Settings) -> Solved:
    """A network that has learnt the new data and the past together, from the old weights."""
    with only_trainable(problem.new, problem.prior.names):
        return _by_descent(problem, past, settings)


def _by_descent(problem: AdaptationProblem, past: Past, settings: Settings) -> Solved:
    model, change, posterior = problem.new, problem.change, problem.posterior
    size = settings.batch_size or BATCH
    lost = removed_classes(problem, past)
    if len(lost):
        past = without_classes(problem, past, lost)
    past = carried(past, model)
    objective = past.penalty(model, posterior, problem.pulling, problem.scale, size)
    if change.added is not None:
        data = Memory.of(change.added)
        objective = objective + NewData(data, posterior.likelihood, batch_size=size)
    if problem.way == "combined" and past.memory is not None and _descends(model, problem.old):
        objective = objective + labels_of(problem.old, past.memory, posterior, size)
    kept, new = (0 if part is None else len(part) for part in (past.memory, change.added))
    steps = steps_on(new or kept, settings)
    if settings.lr is None and problem.other_model():  # which starts anywhere, as a training does
        settings = replace(settings, lr=VariationalLearner.usual_lr(model))
    steps = settle(model, objective.over(problem.n), steps, settings)
    looked_at = steps * (min(kept, size) + min(new, size))
    memory = memory_after(problem, past, settings.seed)
    return Solved(model, past, None, memory, False, steps, float(looked_at), None)


def _descends(new: nn.Module, old: nn.Module) -> bool:
    """Whether a network has the parameters of another, some perhaps with more rows: labels then have their balance."""
    before, there = dict(old.named_parameters()), dict(new.named_parameters())
    return there.keys() == before.keys() and all(fits(p, there[name]) for name, p in before.items())
