"""One model, one training run: what was asked for is checked, put together, and run."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posterity import likelihoods
from posterity.batches import Batch, Inputs, batches, call
from posterity.errors import expected, require, require_positive
from posterity.learning._bar import ProgressBar
from posterity.learning._loop import Loop, Row
from posterity.learning._step import Stepper, check_inputs
from posterity.learning.callbacks import Callback
from posterity.learning.checkpoints import Checkpoints
from posterity.learning.learners import METHODS, Learner, Plan
from posterity.learning.noise_precision import NoisePrecision
from posterity.learning.objective import Objective, infer_likelihood
from posterity.learning.schedules import Schedule, find_schedule
from posterity.learning.seeding import own_randomness, seed_step
from posterity.likelihoods import GaussianLikelihood, Likelihood
from posterity.posterior import Posterior
from posterity.trees import fingerprint, trainable


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
    epochs: int
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
        whole = {"epochs": self.epochs, "batch_size": self.batch_size, "accumulate": self.accumulate}
        optional = {"n": self.n, "patience": self.patience, "checkpoint_every": self.checkpoint_every}
        for name, value in (whole | {k: v for k, v in optional.items() if v is not None}).items():
            require(isinstance(value, int) and value >= 1, name, "an integer >= 1", value)
        for name, number in {"lr": self.lr, "clip": self.clip}.items():
            if number is not None:
                require_positive(name, number)
        require(self.patience is None or self.validation is not None, "patience", "validation data beside it", None)
        needs_folder = self.resume or self.checkpoint_every is not None
        require(self.checkpoint is not None or not needs_folder, "checkpoint", "a folder", None)

    def learner_type(self) -> type[Learner]:
        """The class of the method, once its options are known to be its own."""
        if self.method not in METHODS:
            raise expected("method", f"one of {sorted([*METHODS, 'ensemble'])}", self.method)
        learner = METHODS[self.method]
        known = [p.name for p in inspect.signature(learner).parameters.values() if p.kind is p.KEYWORD_ONLY]
        for name in self.options:
            if name not in known:
                raise expected(f"option of method {self.method!r}", f"one of {known}", name)
        return learner

    def settings(self, model: nn.Module, plan: Plan) -> dict[str, Any]:
        """What a checkpoint compares before it lets a run go on."""
        plain = {name: value for name, value in vars(self).items() if isinstance(value, (int, float, str))}
        for name in ("resume", "progress", "checkpoint", "checkpoint_every"):
            plain.pop(name, None)
        options = {f"option {k}": v for k, v in self.options.items() if isinstance(v, (int, float, str))}
        computed = {"n": plan.n, "steps": plan.steps, "lr": plan.lr, "architecture": fingerprint(model)}
        return plain | options | computed


def train(model: nn.Module, data: Any, request: Request) -> Run:
    """Train one model as requested."""
    learner_type = request.learner_type()
    stream = batches(data, batch_size=request.batch_size, shuffle=True, seed=request.seed)
    require(len(stream) > 0, "data", "at least one batch", "an empty loader")
    with own_randomness():
        seed_step(request.seed, 0)
        objective, noise = _examine(model, next(stream.epoch(0)), request)
    if noise is not None:
        noise.memory = max(len(stream) // request.accumulate, 1)
    plan = Plan(
        n=request.n or stream.n,
        steps=request.epochs * -(-len(stream) // request.accumulate),
        lr=learner_type.default_lr if request.lr is None else request.lr,
        seed=request.seed,
        learns_noise=noise is not None,
        class_names=None if request.class_names is None else tuple(request.class_names),
    )
    learner = learner_type(model, plan, **request.options)
    loop = Loop(
        stepper=Stepper(learner, request.clip, request.amp, request.augment, request.penalty),
        objective=objective,
        data=stream,
        epochs=request.epochs,
        schedule=learner.schedule() if request.schedule is None else find_schedule(request.schedule),
        seed=request.seed,
        accumulate=request.accumulate,
        validation=None if request.validation is None else batches(request.validation, batch_size=request.batch_size),
        patience=request.patience,
        noise=noise,
        callbacks=[*request.callbacks, *_bar(request.progress)],
        checkpoints=None if request.checkpoint is None else _checkpoints(request, model, plan),
    )
    if loop.checkpoints is not None:
        state = loop.checkpoints.open(request.resume)
        if state is not None:
            loop.load(state)
    loop.run()
    posterior = learner.posterior(loop.objective.likelihood, stream)
    posterior.apply(model)
    return Run(model, posterior, loop.history, request.method, loop.step, loop.interrupted)


def _checkpoints(request: Request, model: nn.Module, plan: Plan) -> Checkpoints:
    return Checkpoints(Path(request.checkpoint or ""), request.settings(model, plan), request.checkpoint_every)


def _bar(progress: bool | None) -> list[Callback]:
    shown = sys.stderr.isatty() if progress is None else progress
    return [ProgressBar()] if shown else []


@torch.no_grad()
def _examine(model: nn.Module, batch: Batch, request: Request) -> tuple[Objective, NoisePrecision | None]:
    """Look at one batch: what the outputs mean, whether the targets fit, how large the noise of a regression is."""
    check_inputs(model, batch)
    was_training = model.training
    model.eval()
    f = call(model, batch.to(next(model.parameters()).device).inputs)
    model.train(was_training)
    y = batch.targets.to(f.device)
    require(len(trainable(model)) > 0, "model", "trainable parameters", "none")
    given = request.likelihood
    weights = request.class_weights
    objective = Objective(
        infer_likelihood(f, y) if given is None else likelihoods.likelihood(given),
        None if weights is None else torch.as_tensor(weights, dtype=torch.float32),
        request.label_smoothing,
        request.ignore_index,
    )
    objective.check(f, y)
    if isinstance(given, Likelihood) or not isinstance(objective.likelihood, GaussianLikelihood):
        return objective, None
    noise = NoisePrecision()
    precision = noise.update((f - y).square().sum().item(), y.numel())
    return objective.with_precision(precision), noise
