"""A network trained from new weights: what is left where the whole past is forgotten, and what `compare` retrains."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from posterity.adaptation.past import Past
from posterity.adaptation.problem import AdaptationProblem, Solved
from posterity.adaptation.solve.schedule import BATCH, LARGE_RATE, Schedule
from posterity.adaptation.solve.training import Settings, memory_after
from posterity.adaptation.solve.warm_start import Corrected, descend
from posterity.adaptation.transfer import carried
from posterity.learning.learners.variational import VariationalLearner
from posterity.learning.starts import reinitialised
from posterity.trees import only_trainable

EPOCHS, STEPS = 20, 2000  # of networks whose training is unknown, whichever is more: what `fit` takes by default


def retrained_network(problem: AdaptationProblem, task: Corrected, settings: Settings) -> tuple[nn.Module, int]:
    """A network whose learnt weights were drawn anew, trained on given data, and the number of steps.

    Where no prior pulls, the length of the old training regularises: as many passes are made again.
    """
    model, rows = reinitialised(problem.new, settings.seed, 1), len(task.data)
    there = dict(model.named_parameters())
    with torch.no_grad():
        for name, p in problem.new.named_parameters():
            if name not in problem.prior.mean:  # frozen, and no part of what was learnt
                there[name].copy_(p)
    training = problem.posterior.training if problem.widths_alone() else None
    batch_size = settings.batch_size or (BATCH if training is None else training.batch_size)
    each = -(-rows // batch_size)
    if training is None:
        schedule = Schedule(max(STEPS, EPOCHS * each), LARGE_RATE, batch_size, anew=True)
    else:
        lr = training.lr or VariationalLearner.usual_lr(model)
        steps = max(1, round(training.epochs * each))
        schedule = Schedule(steps, lr, batch_size, kept=0.0, halves=False, anew=True)
    steps = settings.epochs * each if settings.epochs else schedule.steps
    schedule = replace(schedule, steps=steps, lr=settings.lr or schedule.lr)
    with only_trainable(model, problem.prior.names):
        return model, descend(model, replace(task, changed=0), schedule, settings.seed, settings.clip)


def anew(problem: AdaptationProblem, past: Past, settings: Settings) -> Solved:
    """A network that has learnt the new data alone, from new weights."""
    added = problem.change.added
    assert added is not None
    prior = problem.pulling  # which weighs nothing where it decided widths alone
    task = Corrected(added, 0, problem.posterior.likelihood, prior, problem.scale)
    found, steps = retrained_network(problem, task, settings)
    problem.new.load_state_dict(found.state_dict())
    past = carried(past, problem.new)
    memory = memory_after(problem, past, settings.seed)
    return Solved(problem.new, past, None, memory, False, steps, float(steps * min(BATCH, len(added))), None)
