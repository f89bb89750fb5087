"""One model, one training run: what was asked for is checked, put together, and run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from posterity import likelihoods
from posterity.batches import Batch, batches
from posterity.errors import expected, require, require_positive, require_whole
from posterity.inputs import Inputs, attempt
from posterity.learning._bar import ProgressBar
from posterity.learning._loop import Loop, Row
from posterity.learning._step import Stepper
from posterity.learning.callbacks import Callback
from posterity.learning.checkpoints import Checkpoints
from posterity.learning.checks import check_class_names, check_inputs
from posterity.learning.learners import METHODS, Learner, TrainingPlan
from posterity.learning.noise_precision import NoisePrecision
from posterity.learning.objective import Objective, infer_likelihood
from posterity.learning.running_metrics import diverged
from posterity.learning.schedules import Schedule, find_schedule
from posterity.learning.seeding import own_randomness, seed_step
from posterity.likelihoods import Likelihood
from posterity.posterior import Posterior
from posterity.trees import evaluating, fingerprint, trainable

_FREE_TO_CHANGE = ("resume", "progress", "checkpoint", "checkpoint_every")  # when a run is resumed
_PLAIN = {"accumulate": 1, "label_smoothing": 0.0}  # arguments that are not None when they ask for nothing
FEWEST_EPOCHS, FEWEST_STEPS = 20, 2000  # what training gets for a user who does not say how long


@dataclass(frozen=True)
class Run:
    """What training leaves behind.

    Args:
        model: The model at the posterior mean, in evaluation mode.
        posterior: The posterior.
        history: A row for each epoch: loss, accuracy or rmse, validation figures, lr, sigma, seconds.
        method: How it was trained.
        steps: Optimizer steps taken.
        interrupted: Whether somebody stopped it (Ctrl-C) before its end.
    """

    model: nn.Module
    posterior: Posterior
    history: list[Row]
    method: str
    steps: int
    interrupted: bool


@dataclass(frozen=True)
class Request:
    """The arguments of `fit`, where they are explained."""

    method: str
    likelihood: str | Likelihood | None
    epochs: int | None
    batch_size: int
    lr: float | None
    schedule: str | Schedule | None
    validation: Any
    patience: int | None
    n: int | None
    seed: int
    augment: Callable[[Inputs], Inputs] | None
    class_weights: Sequence[float] | Tensor | None
    label_smoothing: float
    ignore_index: int | None
    penalty: Callable[[nn.Module], Tensor] | None
    accumulate: int
    clip: float | None
    amp: str | None
    class_names: Sequence[str] | None
    callbacks: Sequence[Callback]
    checkpoint: str | Path | None
    checkpoint_every: int | None
    resume: bool
    progress: bool | None
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        given = vars(self) | {"options": {name: _plain(value) for name, value in self.options.items()}}
        for name, value in given.items():
            object.__setattr__(self, name, _plain(value))
        for name in ("epochs", "batch_size", "accumulate", "n", "patience", "checkpoint_every"):
            if getattr(self, name) is not None:
                require_whole(name, getattr(self, name))
        require(isinstance(self.seed, Integral), "seed", "a whole number", self.seed)
        if self.lr is not None:
            require_positive("lr", self.lr)
        require(self.clip is None or self.clip > 0, "clip", "a positive number", self.clip)
        require(self.patience is None or self.validation is not None, "patience", "validation data beside it", None)
        needs_folder = self.resume or self.checkpoint_every is not None
        require(self.checkpoint is not None or not needs_folder, "checkpoint", "a folder", None)

    def learner_type(self) -> type[Learner]:
        """The class of the method, once its options are known to be its own."""
        if self.method not in METHODS:
            raise expected("method", f"one of {sorted([*METHODS, 'ensemble'])}", self.method)
        learner = METHODS[self.method]
        for name in self.options:
            if name not in learner.options():
                raise expected(f"option of method {self.method!r}", f"one of {learner.options()}", name)
        for name in learner.refused:
            value = getattr(self, name)
            if value is not None and not (name in _PLAIN and value == _PLAIN[name]):
                raise expected(name, f"its default, for method {self.method!r} has no use for it", value)
        return learner

    def settings(self, model: nn.Module, plan: TrainingPlan) -> dict[str, str]:
        """What a checkpoint compares before it lets a run go on."""
        asked = {name: v for name, v in vars(self).items() if name not in _FREE_TO_CHANGE}
        asked |= {f"option {name}": str(v) if isinstance(v, (list, tuple)) else v for name, v in self.options.items()}
        asked |= {"n": plan.n, "steps": plan.steps, "lr": plan.lr, "architecture": fingerprint(model)}
        if self.class_weights is not None:
            asked["class_weights"] = str(_numbers("class_weights", self.class_weights).tolist())
        return {name: repr(v) for name, v in asked.items() if isinstance(v, (int, float, str))}


def train(model: nn.Module, data: Any, request: Request) -> Run:
    """Train one model as requested."""
    learner_type = request.learner_type()
    stream = batches(data, batch_size=request.batch_size, shuffle=True, seed=request.seed)
    require(len(stream) > 0, "data", "at least one batch", "an empty loader")
    parameter = next(model.parameters(), None)
    if parameter is None:
        raise expected("model", "trainable parameters", "none")
    device = parameter.device
    with own_randomness(device):
        seed_step(request.seed, 0, device)
        objective = _examine(model, next(stream.epoch(0)), request)
    steps_per_epoch = -(-len(stream) // request.accumulate)
    given = isinstance(request.likelihood, Likelihood)
    learns_noise = objective.likelihood.noise_precision is not None and not given
    validation = None if request.validation is None else batches(request.validation, batch_size=request.batch_size)
    require(validation is None or len(validation) > 0, "validation", "at least one batch", "an empty loader")
    epochs = request.epochs or max(FEWEST_EPOCHS, -(-FEWEST_STEPS // steps_per_epoch))
    plan = TrainingPlan(
        n=request.n or stream.n,
        steps=epochs * steps_per_epoch,
        lr=learner_type.default_lr if request.lr is None else request.lr,
        seed=request.seed,
        learns_noise=learns_noise,
        class_names=None if request.class_names is None else tuple(request.class_names),
    )
    learner = learner_type(model, plan, **request.options)
    clip = learner.default_clip if request.clip is None else request.clip
    loop = Loop(
        stepper=Stepper(learner, clip, request.amp, request.augment, request.penalty),
        objective=objective,
        data=stream,
        epochs=epochs,
        schedule=learner.schedule() if request.schedule is None else find_schedule(request.schedule),
        seed=request.seed,
        accumulate=request.accumulate,
        validation=validation,
        patience=request.patience,
        noise=NoisePrecision.over(epochs, steps_per_epoch) if learns_noise else None,
        callbacks=[*request.callbacks, *_bar(request.progress)],
        checkpoints=None if request.checkpoint is None else _checkpoints(request, model, plan),
    )
    if loop.checkpoints is not None:
        state = loop.checkpoints.open(request.resume)
        if state is not None:
            loop.load(state)
    loop.run()
    if not all(p.isfinite().all() for p in trainable(model).values()):
        raise diverged("weights are NaN or infinite")
    posterior = learner.posterior(loop.objective.likelihood, stream)
    learner.leave(posterior)
    return Run(model, posterior, loop.history, request.method, loop.step, loop.interrupted)


def _checkpoints(request: Request, model: nn.Module, plan: TrainingPlan) -> Checkpoints:
    return Checkpoints(Path(request.checkpoint or ""), request.settings(model, plan), request.checkpoint_every)


def _bar(progress: bool | None) -> list[Callback]:
    shown = sys.stderr.isatty() if progress is None else progress
    return [ProgressBar()] if shown else []


def _plain(value: Any) -> Any:
    """Numbers of numpy as Python's, which have no bounds and are compared with a checkpoint's."""
    return value.item() if isinstance(value, np.generic) else value


def _numbers(what: str, values: Any) -> Tensor:
    try:
        return torch.as_tensor(values, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError):
        raise expected(what, "a sequence of numbers", values) from None


@torch.no_grad()
def _examine(model: nn.Module, batch: Batch, request: Request) -> Objective:
    """Look at one batch: what the outputs mean, whether the targets fit, how far off a regression starts."""
    check_inputs(model, batch)
    batch = batch.to(next(model.parameters()).device)
    with evaluating(model):
        f, y = attempt(model, batch.inputs), batch.targets
    require(len(trainable(model)) > 0, "model", "trainable parameters", "none")
    given, weights = request.likelihood, request.class_weights
    objective = Objective(
        infer_likelihood(f, y) if given is None else likelihoods.likelihood(given),
        None if weights is None else _numbers("class_weights", weights),
        request.label_smoothing,
        request.ignore_index,
    )
    objective.check(f, y)
    check_class_names(request.class_names, objective.likelihood, f)
    request.learner_type().check(f, objective.likelihood)
    if objective.likelihood.noise_precision is None or isinstance(given, Likelihood):
        return objective
    return objective.with_precision(y.numel() / max((f - y).square().sum().item(), 1e-8))
