"""The training loop: epochs, validation, early stopping, checkpoints, callbacks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from posterity.batches import Batch, Batches
from posterity.errors import InvalidInput
from posterity.learning._step import Stepper
from posterity.learning.callbacks import Callback, Moment
from posterity.learning.checkpoints import Checkpoints
from posterity.learning.interrupts import Stop, stop_on_interrupt
from posterity.learning.learners import Learner
from posterity.learning.noise_precision import NoisePrecision
from posterity.learning.objective import Objective
from posterity.learning.running_metrics import RunningMetrics, diverged, evaluate
from posterity.learning.schedules import Schedule
from posterity.learning.seeding import own_randomness, seed_step
from posterity.trees import snapshot, trainable

Row = dict[str, float]
_LOOK = 100  # steps between two looks at the widths of all weights
FIGURES = ("sigma", "temperature", "price", "effective_parameters")  # that a method may know of its posterior


@dataclass
class Loop:
    """Everything that changes while training runs.

    All randomness of step t is a function of (seed, t), and everything else that matters is in `state`: a run that
    is stopped anywhere and resumed ends in the same bits.
    """

    stepper: Stepper
    objective: Objective
    data: Batches
    epochs: int
    schedule: Schedule
    seed: int = 0
    accumulate: int = 1
    validation: Batches | None = None
    patience: int | None = None
    noise: NoisePrecision | None = None
    callbacks: Sequence[Callback] = ()
    checkpoints: Checkpoints | None = None

    step: int = 0
    history: list[Row] = field(default_factory=list)
    finished: bool = False
    interrupted: bool = False
    best_loss: float | None = None
    best: dict[str, Any] | None = None
    waited: int = 0
    order: Tensor | None = None  # state of a loader's own generator when the epoch began

    def __post_init__(self) -> None:
        self.learner: Learner = self.stepper.learner
        self.metrics = RunningMetrics()
        self.steps_per_epoch = -(-len(self.data) // self.accumulate)
        self.steps = self.epochs * self.steps_per_epoch

    def run(self) -> None:
        """Train until the end, until validation stops improving, or until a stop is requested."""
        with own_randomness(self.stepper.device), stop_on_interrupt() as stop:
            try:
                self._tell("start", stop, self._running)
                first = self.step // self.steps_per_epoch
                while self.step < self.steps and not (self.finished or stop.requested):
                    self._epoch(stop, check=self.step // self.steps_per_epoch == first)
                self.interrupted = stop.requested
                if self.interrupted and self.checkpoints is not None:
                    self.checkpoints.save(self.state())
            finally:
                self._tell("end", stop, self._running)
        if self.best is not None:
            self._restore(self.best)
        if self.best is not None or self.step < self.steps:
            self.learner.stopped()
        self.learner.model.eval()

    def _epoch(self, stop: Stop, check: bool) -> None:
        started = time.perf_counter()
        epoch = self.step // self.steps_per_epoch
        self.learner.model.train()
        for group in self._groups(epoch):
            self._step(group, check)
            self._tell("step", stop, self._running)
            if self.step % self.steps_per_epoch == 0:
                break
            if self.checkpoints is not None and self.checkpoints.due(self.step):
                self.checkpoints.save(self.state())
            if stop.requested:
                return
        self.metrics.require_loss("targets")
        self.learner.epoch_done(self.step / self.steps)
        row = {"epoch": epoch + 1, **self._running(), **self._validate()}
        self.history.append(row | {"seconds": time.perf_counter() - started})
        self.metrics = RunningMetrics()
        done = self.finished or self.step >= self.steps
        if self.checkpoints is not None and (done or self.checkpoints.due(self.step)):
            self.checkpoints.save(self.state())
        self._tell("epoch", stop, lambda: self.history[-1])

    def _step(self, group: Sequence[Batch], check: bool) -> None:
        # The middle of the step: a warm-up from zero would waste the first one.
        factor = self.schedule((self.step + 0.5) / self.steps) * self.learner.scale(self.objective.likelihood)
        for settings in self.learner.optimizer.param_groups:
            settings["lr"] = self.learner.plan.lr * factor
        seen = self.stepper(group, self.objective, self.step + 1, check)
        self.step += 1
        self.metrics.join(seen)
        if self.noise is not None:
            _, _, error, count = seen.sums()
            if count > 0:
                precision = self.noise.update(error, count)
                if not precision > 0:
                    raise diverged("the squared error is infinite")
                self.objective = self.objective.with_precision(precision)

    def _groups(self, epoch: int) -> Iterator[list[Batch]]:
        """The batches of each step that is still to be done in an epoch."""
        self.order = self._order_to_come()
        stream = self.data.steps(epoch, self.accumulate)
        for step in range(epoch * self.steps_per_epoch, (epoch + 1) * self.steps_per_epoch):
            seed_step(self.seed, step, self.stepper.device)
            group = next(stream, None)
            if group is None:
                raise InvalidInput(f"data: expected {len(self.data)} batches an epoch, got fewer")
            if step >= self.step:
                yield group

    def _order_to_come(self) -> Tensor | None:
        return None if self.data.generator is None else self.data.generator.get_state()

    def _validate(self) -> Row:
        """Metrics on the validation data; where they stop improving, so does training."""
        if self.validation is None:
            return {}
        row = evaluate(self.learner.model, self.validation, self.objective)
        if self.patience is not None:
            if self.best_loss is None or row["loss"] < self.best_loss:
                self.best_loss, self.best, self.waited = row["loss"], self._learnt(), 0
            else:
                self.waited += 1
            self.finished = self.waited >= self.patience
        return {f"validation_{name}": value for name, value in row.items()}

    def _running(self) -> Row:
        """Running means of the epoch, with the figures of the method and of the noise."""
        row = self.metrics.metrics(self.objective)
        row["lr"] = self.learner.optimizer.param_groups[0]["lr"]
        row |= self._figures()
        if self.noise is not None:
            row["noise_precision"] = self.noise.value
        return row

    def _figures(self) -> Row:
        """The method's figures of its posterior, computed every so many steps: a short epoch takes less time."""
        before = self.step - self.steps_per_epoch
        if self.history and before // _LOOK == self.step // _LOOK and self.step < self.steps:
            return {name: value for name, value in self.history[-1].items() if name in FIGURES}
        return self.learner.figures()

    def _tell(self, what: str, stop: Stop, metrics: Callable[[], Mapping[str, float]]) -> None:
        if not self.callbacks:
            return
        moment = Moment(
            step=self.step,
            steps=self.steps,
            epoch=self.step // self.steps_per_epoch,
            epochs=self.epochs,
            model=self.learner.model,
            optimizer=self.learner.optimizer,
            metrics=metrics,
            posterior=lambda: self.learner.posterior(self.objective.likelihood, self.data),
            batch=self.data.n / self.steps_per_epoch,
        )
        try:
            for callback in self.callbacks:
                getattr(callback, what)(moment)
        except KeyboardInterrupt:
            stop.requested = True

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs, as nested dictionaries of tensors and numbers."""
        return {
            "step": self.step,
            "history": self.history,
            "finished": self.finished,
            "best_loss": self.best_loss,
            "best": self.best,
            "waited": self.waited,
            "order": self._order_to_come() if self.step % self.steps_per_epoch == 0 else self.order,
            "tally": self.metrics.rows,
            "scaler": self.stepper.state(),
            "learnt": self._learnt(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` gave."""
        for name in ("step", "history", "finished", "best_loss", "best", "waited"):
            setattr(self, name, state[name])
        if self.data.generator is not None and state.get("order") is not None:  # older checkpoints have none
            self.data.generator.set_state(state["order"])
        self.metrics = RunningMetrics(None if state["tally"] is None else state["tally"].to(self.stepper.device))
        self.stepper.load(state["scaler"])
        self._restore(state["learnt"])

    def _learnt(self) -> dict[str, Any]:
        model, optimizer = self.learner.model, self.learner.optimizer.state_dict()
        return {
            "parameters": snapshot(trainable(model)),
            "buffers": snapshot(dict(model.named_buffers())),
            "optimizer": _copied(optimizer["state"]),
            "groups": [_numbers(group) for group in optimizer["param_groups"]],
            "beside": _copied({name: v for name, v in optimizer.items() if name not in ("state", "param_groups")}),
            "method": snapshot(self.learner.state()),
            "noise": None if self.noise is None else torch.tensor(list(self.noise.window), dtype=torch.float64),
        }

    @torch.no_grad()
    def _restore(self, learnt: Mapping[str, Any]) -> None:
        model, optimizer = self.learner.model, self.learner.optimizer
        for there, kept in ((trainable(model), "parameters"), (dict(model.named_buffers()), "buffers")):
            for name, value in learnt[kept].items():
                there[name].copy_(value)
        state = {int(index): dict(entries) for index, entries in learnt["optimizer"].items()}
        groups = [a | b for a, b in zip(optimizer.state_dict()["param_groups"], learnt["groups"], strict=True)]
        optimizer.load_state_dict({"state": state, "param_groups": groups, **learnt.get("beside", {})})
        self.learner.load(learnt["method"])
        if self.noise is not None:
            self.noise = NoisePrecision(self.noise.memory, map(tuple, learnt["noise"].tolist()))
            self.objective = self.objective.with_precision(self.noise.value)


def _numbers(group: Mapping[str, Any]) -> dict[str, float]:
    """The settings and counters of a parameter group that JSON can hold."""
    return {name: v for name, v in group.items() if isinstance(v, (int, float)) and math.isfinite(v)}


def _copied(value: Any) -> Any:
    """Nested dictionaries and lists with every tensor copied: optimizers go on writing into theirs."""
    if isinstance(value, Mapping):
        return {key: _copied(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_copied(entry) for entry in value]
    return value.detach().clone() if isinstance(value, Tensor) else value
