"""One step of training: forward, backward and the optimizer, over one or several batches and weight draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from posterity.batches import Batch
from posterity.errors import InvalidInput, expected
from posterity.inputs import Inputs
from posterity.learning.checks import check_inputs
from posterity.learning.learners import Learner
from posterity.learning.objective import Objective
from posterity.learning.running_metrics import RunningMetrics
from posterity.startup import step_of

_SURELY = 0.99  # of a bound, within which no rounding leads beyond it
_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass
class Stepper:
    """Computes gradients and steps.

    Args:
        learner: The method.
        clip: Largest norm of the gradient.
        amp: "bf16" or "fp16" for autocast; "fp16" scales the loss.
        augment: What is done to the inputs of each batch.
        penalty: A function of the model that is added to the mean loss.
    """

    learner: Learner
    clip: float = math.inf
    amp: str | None = None
    augment: Callable[[Inputs], Inputs] | None = None
    penalty: Callable[[nn.Module], Tensor] | None = None

    def __post_init__(self) -> None:
        if self.amp is not None and self.amp not in _HALF:
            raise expected("amp", f"one of {sorted(_HALF)} or None", self.amp)
        self.device = next(self.learner.model.parameters()).device
        self.parameters = [p for group in self.learner.optimizer.param_groups for p in group["params"]]
        self.step_once = step_of(self.learner.optimizer)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.amp == "fp16")
        if self.scaler.is_enabled():
            self.learner.scaled_by(self.scaler)

    def __call__(self, group: Sequence[Batch], objective: Objective, step: int, check: bool) -> RunningMetrics:
        """Step once on the mean loss over all batches of a group, averaged over the method's weight draws."""
        tally = RunningMetrics()
        batches = [batch.to(self.device) for batch in group]
        masses = [objective.mass(batch.targets) for batch in batches]
        mass = masses[0] if len(masses) == 1 else torch.stack(masses).sum()
        if not objective.plain:
            mass = mass.clamp_min(1e-12)  # a batch without any target has mass 0 and loss 0
        optimizer = self.learner.optimizer
        if type(optimizer).zero_grad is Optimizer.zero_grad:
            for p in self.parameters:
                p.grad = None  # as `zero_grad` does, without a record for the profiler
        else:
            optimizer.zero_grad(set_to_none=True)
        for i, batch in enumerate(batches):
            if check:
                check_inputs(self.learner.model, batch)
            inputs = batch.inputs if self.augment is None else self.augment(batch.inputs)
            seen = Batch(inputs, batch.targets, batch.ids)
            for sample in range(self.learner.draws):
                number = i * self.learner.draws + sample
                for turn, place in enumerate(self.learner.passes(step, number, self.scaler)):
                    with place:
                        found = self._differentiate(seen, objective, mass, len(batches), check)
                    if turn == 0:
                        for f, total in found:
                            share = 1 / (self.learner.draws * len(found))
                            tally.add(objective, f, batch.targets, total, share, masses[i])
        scales = self.scaler.is_enabled()
        if scales:
            self.scaler.unscale_(optimizer)
        if self.clip < math.inf:
            _clip(self.parameters, self.clip)
        if scales:
            self.scaler.step(optimizer)
            self.scaler.update()
        else:
            self.step_once()
        return tally

    def state(self) -> dict[str, Any]:
        """The loss scale."""
        return self.scaler.state_dict()

    def load(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` gave."""
        if state:
            self.scaler.load_state_dict(dict(state))

    def _differentiate(
        self, batch: Batch, objective: Objective, mass: Tensor, batches: int, check: bool
    ) -> list[tuple[Tensor, Tensor]]:
        """Forward and backward through every network at the weights in place; their outputs and summed losses."""
        found = []
        share = 1 / (batches * self.learner.draws)
        factor = 1 / share if self.learner.averages else 1.0
        for k, forward in enumerate(self.learner.forwards()):
            f = self._forward(forward, batch.inputs)
            if check:
                objective.check(f, batch.targets)
            total = objective.total(f, batch.targets)
            alone = self.learner.draws == 1 and factor == 1
            loss = total / mass if alone else factor * total / (mass * self.learner.draws)
            penalised = self._penalised(loss, factor * share) if k == 0 else loss
            self.learner.backward(self.scaler.scale(penalised), batch, objective.likelihood)
            found.append((f.detach(), total.detach()))
        return found

    def _forward(self, forward: Callable[[Inputs], Tensor], inputs: Inputs) -> Tensor:
        dtype = _HALF.get(self.amp or "")
        try:
            if dtype is None and not torch.is_autocast_enabled(self.device.type):
                f = forward(inputs)  # as below, without the cost of a context
            else:
                with torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None):
                    f = forward(inputs)
        except ValueError as why:
            if "more than 1 value per channel" not in str(why):  # whatever else a model raises is its own
                raise
            wanted = "no batch of a single example, which batch norm does not take (or a loader with drop_last)"
            raise InvalidInput(f"batch_size: expected {wanted}, got one") from why
        return f.float() if f.dtype in _HALF.values() else f

    def _penalised(self, loss: Tensor, share: float) -> Tensor:
        terms = [self.learner.penalty(), None if self.penalty is None else self.penalty(self.learner.model)]
        for term in terms:
            loss = loss if term is None else loss + share * term
        return loss


def _clip(parameters: Sequence[Tensor], largest: float) -> None:
    """What `clip_grad_norm_` does; on a CPU, where asking costs nothing, gradients within the bound are left alone."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if gradients and gradients[0].device.type == "cpu":
        norm = math.hypot(*map(float, torch._foreach_norm(gradients)))
        if norm <= _SURELY * largest:  # near the bound torch has the last word, and of NaN too
            return
    nn.utils.clip_grad_norm_(parameters, largest)
