"""Sums over batches, left on the device until they are read, and the metrics they make."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from posterity.batches import Batches
from posterity.errors import PosterityError, require
from posterity.inputs import attempt
from posterity.learning.checks import check_inputs
from posterity.learning.objective import Objective
from posterity.trees import state_dtype


def diverged(how: str) -> PosterityError:
    """The error of a training that diverged."""
    return PosterityError(f"training diverged: {how}; lower lr, or clip the gradient")


class RunningMetrics:
    """Rows of (Σ w ℓ, Σ w, correct, count), one for each batch or step."""

    def __init__(self, rows: Iterable[Tensor] = ()) -> None:
        self.rows = list(rows)

    def add(
        self, objective: Objective, f: Tensor, y: Tensor, total: Tensor, share: float = 1.0, mass: Tensor | None = None
    ) -> None:
        """Count one batch of outputs, `total` their summed loss; only a share of it, if it is seen several times."""
        correct = objective.correct(f, y)
        mass = objective.mass(y) if mass is None else mass
        right = torch.full_like(total, torch.nan) if correct is None else correct.detach()
        stacked = torch.stack([entry.to(total.dtype) for entry in (total.detach(), mass, right, objective.count(y))])
        self.rows.append(stacked if share == 1 else share * stacked)

    def sums(self) -> Tensor:
        """The summed rows in float64, without batches of non-finite loss."""
        rows = torch.stack(self.rows).to("cpu", torch.float64)
        return rows[rows[:, 0].isfinite()].sum(0)

    def metrics(self, objective: Objective) -> dict[str, float]:
        """Mean loss, with the accuracy or the root of the mean squared error where there is one; none of no targets."""
        total, mass, correct, count = self.sums().tolist() if self.rows else [0.0] * 4
        if mass == 0:
            return {}
        found = {"loss": total / mass}
        if objective.likelihood.noise_precision is not None:
            found["rmse"] = math.sqrt(correct / count)
        elif not math.isnan(correct):
            found["accuracy"] = correct / count
        return found

    def require_loss(self, what: str) -> None:
        """Raise unless there is a mean loss: some target that counts, at a finite loss."""
        if not torch.stack(self.rows)[:, 0].isfinite().any():
            raise diverged("no batch has a finite loss")
        counts = self.sums()[1].item() > 0
        require(counts, what, "some that count, not all ignored or of classes of weight 0", "none")


@torch.no_grad()
def evaluate(model: nn.Module, data: Batches, objective: Objective) -> dict[str, float]:
    """Metrics of the present model, in evaluation mode."""
    model.eval()
    device = next(model.parameters()).device
    found = RunningMetrics()
    for batch in data:
        check_inputs(model, batch)
        batch = batch.to(device)
        f = attempt(model, batch.inputs)
        f = f.to(state_dtype(f.dtype))
        objective.check(f, batch.targets)
        total = objective.total(f, batch.targets)
        if not total.isfinite():  # left out, as in training, it would make the rest look like the whole
            raise PosterityError(
                "validation: expected finite losses, got NaN or infinity; lower lr, or clip the gradient"
            )
        found.add(objective, f, batch.targets, total)
    found.require_loss("targets to validate with")
    return found.metrics(objective)
