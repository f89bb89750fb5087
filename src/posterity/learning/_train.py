"""One model, one training run: what was asked for is checked, put together, and run."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from posterity import likelihoods
from posterity.batches import Batch, batches, batches_of
from posterity.errors import expected, require
from posterity.inputs import attempt
from posterity.learning import pretrained
from posterity.learning._bar import ProgressBar, ProgressLines
from posterity.learning._loop import Loop, Row
from posterity.learning._step import Stepper
from posterity.learning.callbacks import Callback
from posterity.learning.checkpoints import Checkpoints
from posterity.learning.checks import check_class_names, check_inputs
from posterity.learning.learners import TrainingPlan
from posterity.learning.length import cross_validates, searched_epochs, usual_epochs
from posterity.learning.noise_precision import NoisePrecision
from posterity.learning.objective import Objective, infer_likelihood
from posterity.learning.running_metrics import diverged
from posterity.learning.schedules import find_schedule
from posterity.learning.seeding import own_randomness, seed_step
from posterity.learning.sentinels import set_apart
from posterity.learning.settings import FitSettings, numbers
from posterity.likelihoods import Likelihood
from posterity.posterior import Posterior, Training
from posterity.startup import fitting_threads, put_off_compiler
from posterity.trees import evaluating, require_values, trainable


@dataclass(frozen=True)
class Run:
    """The result of training.

    Args:
        model: The model at the posterior mean, in evaluation mode.
        posterior: The posterior.
        history: A row for each epoch: loss, accuracy or rmse, validation figures, lr, sigma, seconds; of "variational"
            also temperature, price and effective number of parameters (`Diagnostics` explains them).
        method: How it was trained.
        steps: Optimizer steps taken.
        interrupted: Whether it was stopped (Ctrl-C) before its end.
    """

    model: nn.Module
    posterior: Posterior
    history: list[Row]
    method: str
    steps: int
    interrupted: bool

    def __repr__(self) -> str:
        """The posterior and the last figures; the model and the whole history would fill a screen."""
        last = {name: round(v, 4) if isinstance(v, float) else v for name, v in (self.history or [{}])[-1].items()}
        stopped = ", interrupted" if self.interrupted else ""
        return f"Run({self.method}, {self.steps} steps{stopped}, {self.posterior}, last epoch {last})"


def train(model: nn.Module, data: Any, settings: FitSettings) -> Run:
    """Train one model."""
    put_off_compiler()
    learner_type = settings.learner_type()
    stream = batches(data, batch_size=settings.batch_size, shuffle=True, seed=settings.seed)
    require(len(stream) > 0, "data", "at least one batch", "an empty loader")
    parameter = next(model.parameters(), None)
    if parameter is None:
        raise expected("model", "trainable parameters", "none")
    device = parameter.device
    require_values(model)
    with own_randomness(device):
        seed_step(settings.seed, 0, device)
        first = next(stream.epoch(0))
        objective = _examine(model, first, settings)
    given = isinstance(settings.likelihood, Likelihood)
    learns_noise = objective.likelihood.noise_precision is not None and not given
    held_out, size = settings.validation, settings.batch_size
    validation = None if held_out is None else batches_of("validation", held_out, size)
    require(validation is None or len(validation) > 0, "validation", "at least one batch", "an empty loader")
    n = settings.n or stream.n  # sentinels are examples of the posterior too
    watched, cross_validated = settings.validation, cross_validates(model, stream, settings)
    if not cross_validated:
        stream, sentinels = set_apart(stream, objective, settings)
        watched = watched if sentinels is None else sentinels
    steps_per_epoch = -(-len(stream) // settings.accumulate)
    unseen_loss = None
    if cross_validated:
        with fitting_threads(model, settings.batch_size, first.inputs):
            epochs, found = searched_epochs(model, stream, objective, settings, steps_per_epoch)
        unseen_loss = found.loss if objective.likelihood.is_classification else None
        if learns_noise and learner_type.noise_from_folds:
            objective, learns_noise = objective.with_precision(found.noise_precision(stream.source[1])), False
    elif settings.epochs is not None:
        epochs = int(settings.epochs)
    else:
        tuned = learner_type.fine_tunes(model)
        epochs = pretrained.usual_epochs(model, steps_per_epoch) if tuned else usual_epochs(steps_per_epoch)
    batch = -(-stream.n // steps_per_epoch)
    plan = TrainingPlan(
        n=n,
        steps=epochs * steps_per_epoch,
        lr=learner_type.usual_lr(model) if settings.lr is None else settings.lr,
        seed=settings.seed,
        learns_noise=learns_noise,
        class_names=None if settings.class_names is None else tuple(settings.class_names),
        batch=batch,
        unseen_loss=unseen_loss,
    )
    learner = learner_type(model, plan, **settings.options)
    clip = pretrained.CLIP if learner.fine_tunes(model) else learner.default_clip
    clip = clip if settings.clip is None else settings.clip
    loop = Loop(
        stepper=Stepper(learner, clip, settings.amp, settings.augment, settings.penalty),
        objective=objective,
        data=stream,
        epochs=epochs,
        schedule=learner.schedule() if settings.schedule is None else find_schedule(settings.schedule),
        seed=settings.seed,
        accumulate=settings.accumulate,
        validation=validation,
        patience=settings.patience,
        noise=NoisePrecision.over(epochs, steps_per_epoch) if learns_noise else None,
        callbacks=[*settings.callbacks, *_bar(settings.progress)],
        checkpoints=None if settings.checkpoint is None else _checkpoints(settings, model, plan),
    )
    if watched is not None and objective.plain:
        learner.watch(watched, lambda: loop.objective.likelihood)
    if loop.checkpoints is not None:
        state = loop.checkpoints.open(settings.resume)
        if state is not None:
            loop.load(state)
    with fitting_threads(model, settings.batch_size, first.inputs):
        loop.run()
    if not all(p.isfinite().all() for p in trainable(model).values()):
        raise diverged("weights are NaN or infinite")
    trained = Training(loop.step / steps_per_epoch, batch, plan.lr if learner.follows_adam else None)
    posterior = replace(learner.posterior(loop.objective.likelihood, stream), training=trained)
    learner.leave(posterior)
    return Run(model, posterior, loop.history, settings.method, loop.step, loop.interrupted)


def _checkpoints(settings: FitSettings, model: nn.Module, plan: TrainingPlan) -> Checkpoints:
    return Checkpoints(Path(settings.checkpoint or ""), settings.compared(model, plan), settings.checkpoint_every)


def _bar(progress: bool | None) -> list[Callback]:
    if progress is None:
        return [ProgressBar() if sys.stderr.isatty() else ProgressLines()]
    return [ProgressBar()] if progress else []


@torch.no_grad()
def _examine(model: nn.Module, batch: Batch, settings: FitSettings) -> Objective:
    """Look at one batch: what the outputs mean, whether the targets fit, how far off a regression starts."""
    check_inputs(model, batch)
    batch = batch.to(next(model.parameters()).device)
    with evaluating(model):
        f, y = attempt(model, batch.inputs), batch.targets
    require(len(trainable(model)) > 0, "model", "trainable parameters", "none")
    given, weights = settings.likelihood, settings.class_weights
    objective = Objective(
        infer_likelihood(f, y) if given is None else likelihoods.likelihood(given),
        None if weights is None else numbers("class_weights", weights),
        settings.label_smoothing,
        settings.ignore_index,
    )
    objective.check(f, y)
    check_class_names(settings.class_names, objective.likelihood, f)
    settings.learner_type().check(f, objective.likelihood)
    if objective.likelihood.noise_precision is None or isinstance(given, Likelihood):
        return objective
    return objective.with_precision(y.numel() / max((f - y).square().sum().item(), 1e-8))
