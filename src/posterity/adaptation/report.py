"""The report of an adaptation: what it did, how good that can be, and what doing nothing would have meant."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor, nn

from posterity.adaptation.past import data_gradient
from posterity.adaptation.penalties.kprior import FunctionDivergence, outputs_of
from posterity.adaptation.solve.drift import Drift
from posterity.batches import Batch
from posterity.likelihoods import Likelihood
from posterity.posterior import Diagonal, Memory

MEANINGS = {
    "no adaptation": "the old model",
    "adapted": "the result",
    "plain warm start": "AdamW at its defaults, from the old weights, for the same time",
    "retrained": "trained on the present data, from new weights",
    "loss on added": "mean negative log-likelihood of the added examples, in nats; lower is better",
    "accuracy on added": "share of the added examples that are predicted as they are labelled",
    "loss on removed": "the same loss on the removed examples; it rises as they are forgotten",
    "accuracy on removed": "share of the removed examples that are still predicted as they were labelled",
    "divergence on memory": "KL from the old model's predictions on remembered examples, in nats; 0 is no change",
    "objective": "loss summed over the present data, and the prior; networks stop before its minimum, which memorises",
    "gradient": "norm of the gradient of the objective; 0 where retraining ends",
    "distance": "from the retrained weights, ‖θ − θ_retrained‖",
}


@dataclass(frozen=True, eq=False, repr=False)
class Report:
    """The report of an adaptation.

    Args:
        method: How it was done: "newton", "warm_start", "kprior", "ewc", "combined", or "anew" (from new weights).
        why: Why in this way.
        exact: Whether this equals retraining, if the old model was at its optimum (see `gradient`): a linear problem,
            solved by Newton's method, whose whole past is available (every example in the memory, or the full posterior
            of a linear regression). Not where `po.fit` centred the prior at the old weights ("variational").
        steps: Newton steps, or steps of descent.
        seconds: How long it took.
        passes: Examples looked at, as passes over all the data that retraining would go over; a Newton step counts one
            for each time it looks at its rows.
        residual: Largest entry of the gradient of the adapted objective at the result (None for networks).
        gradient: Norm of the gradient of the retraining objective at the result, where all data were given.
        bound: Largest distance ‖θ − θ_retrained‖ that this gradient allows, for linear models.
        memory: Number of examples remembered before and after.
        represented: How many examples the memory represented before.
        added: Ids of the added examples.
        removed: Ids of the removed examples.
        table: "no adaptation", "adapted" and, for comparison, "plain warm start" and "retrained": losses, divergence
            from the old model on the memory, and the objective of retraining (loss over all data and prior) where all
            data were given.
        drift: How much of the past was forgotten, and the evidence for it; None where everything was kept.
        notes: Remarks about anything unusual.
    """

    method: str
    why: str
    exact: bool
    steps: int
    seconds: float
    passes: float
    residual: float | None
    gradient: float | None
    bound: float | None
    memory: tuple[int, int]
    represented: float
    added: Tensor
    removed: Tensor
    table: pd.DataFrame
    drift: Drift | None = None
    notes: tuple[str, ...] = ()

    @property
    def legend(self) -> list[str]:
        """What each row and column of the table means, a line for each."""
        return [f"{name}: {MEANINGS[name]}" for name in (*self.table.index, *self.table.columns)]

    def __repr__(self) -> str:
        how = "exact, as retraining from an optimum" if self.exact else "approximate, retraining would differ"
        seen = f"{self.steps} steps, {self.seconds:.2f} s, {self.passes:.2g} passes over the present data"
        table = self.table.to_string(float_format=lambda v: f"{v:.4g}")
        legend = (f"  {line}" for line in self.legend)
        return "\n".join((f"Adapted by {self.method} ({how}): {seen}", self.why, table, *legend, *self.notes))


def row(
    model: nn.Module, likelihood: Likelihood, added: Batch | None, removed: Batch | None, memory: Memory | None
) -> dict[str, float]:
    """How a model does on what was added and removed, and how far it is from the old one on the memory."""
    found = {}
    for name, batch in (("added", added), ("removed", removed)):
        if batch is not None:
            f = outputs_of(model, batch)
            found[f"loss on {name}"] = likelihood.loss(f, batch.targets).mean().item()
            if likelihood.has_class_axis and not batch.targets.is_floating_point():
                right = likelihood.correct(f, batch.targets)
                assert right is not None
                found[f"accuracy on {name}"] = right.double().mean().item()
    if memory is not None:
        each = FunctionDivergence(memory, likelihood).each(outputs_of(model, memory.batch()), None)
        weights = memory.weights.to(each)
        found["divergence on memory"] = max(((weights * each).sum() / weights.sum()).item(), 0.0)  # −1e-10 by rounding
    return found


def objective(model: nn.Module, batch: Batch, likelihood: Likelihood, prior: Diagonal, scale: float) -> float:
    """The retraining objective, loss over all data and prior."""
    there = dict(model.named_parameters())
    away = {name: (there[name].detach() - m.to(there[name])).double().cpu() for name, m in prior.mean.items()}
    pull = sum((prior.precision[name].double().cpu() * d.square()).sum().item() for name, d in away.items())
    return likelihood.loss(outputs_of(model, batch), batch.targets).sum().item() + 0.5 * scale * pull


def objective_gradient(model: nn.Module, batch: Batch, likelihood: Likelihood, prior: Diagonal, scale: float) -> Tensor:
    """The gradient of the retraining objective, loss over all data and prior, as one vector in float64."""
    there = dict(model.named_parameters())
    data = data_gradient(model, batch, likelihood, prior.names)
    parts = []
    for name, m in prior.mean.items():
        pull = scale * prior.precision[name].double() * (there[name].detach() - m.to(there[name])).double()
        parts.append((data[name].double() + pull.to(data[name].device)).reshape(-1))
    return torch.cat(parts)


def distance(model: nn.Module, other: nn.Module, names: tuple[str, ...]) -> float:
    """‖θ − θ′‖ over some parameters; nan between models of other shapes."""
    a, b = dict(model.named_parameters()), dict(other.named_parameters())
    if any(name not in a or a[name].shape != b[name].shape for name in names):
        return float("nan")
    return torch.cat([(a[name] - b[name]).detach().double().reshape(-1) for name in names]).norm().item()
