"""Sums over batches, left on the device until they are read, and the metrics they make."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from posterity.batches import Batches
from posterity.errors import PosterityError, require
from posterity.inputs import attempt
from posterity.learning.checks import check_inputs
from posterity.learning.objective import Objective
from posterity.trees import state_dtype

_AT_ONCE = 256  # rows that are put together at a time: one by one takes longer than the rest of the counting


def diverged(how: str) -> PosterityError:
    """The error of a training that diverged."""
    return PosterityError(f"training diverged: {how}; lower lr, or clip the gradient")


class RunningMetrics:
    """Rows of (Σ w ℓ, Σ w, correct, count), one for each batch or step."""

    def __init__(self, rows: Tensor | None = None) -> None:
        self._rows = [] if rows is None else [rows]
        self._waiting: list[tuple[float, tuple[Tensor, ...]]] = []  # rows that nobody has asked for, as single numbers
        self._sums: list[float] | None = None  # of all rows, once somebody has asked

    def add(
        self, objective: Objective, f: Tensor, y: Tensor, total: Tensor, share: float = 1.0, mass: Tensor | None = None
    ) -> None:
        """Count one batch of outputs, `total` their summed loss; only a share of it, if it is seen several times."""
        correct = objective.correct(f, y)
        mass = objective.mass(y) if mass is None else mass
        right = torch.full_like(total, torch.nan) if correct is None else correct.detach()
        self._wait([(share, (total.detach(), mass, right, objective.count(y)))])

    def join(self, others: RunningMetrics) -> None:
        """Count what others have counted as well."""
        self._rows += others._rows
        self._wait(others._waiting)

    def _wait(self, rows: list[tuple[float, tuple[Tensor, ...]]]) -> None:
        self._waiting += rows
        self._sums = None
        if len(self._waiting) >= _AT_ONCE:
            self._stack()

    def _stack(self) -> None:
        if self._waiting:
            found = torch.stack([number.to(row[0].dtype) for _, row in self._waiting for number in row]).view(-1, 4)
            shares = [share for share, _ in self._waiting]
            whole = all(share == 1 for share in shares)
            self._rows.append(found if whole else found * found.new_tensor(shares).unsqueeze(1))
            self._waiting = []

    @property
    def rows(self) -> Tensor | None:
        """All rows, (n, 4); None where there are none."""
        self._stack()
        return torch.cat(self._rows) if self._rows else None

    def sums(self) -> list[float]:
        """The summed rows, without batches of non-finite loss."""
        if self._sums is None:
            rows = torch.zeros(0, 4) if self.rows is None else self.rows
            rows = rows.to("cpu", torch.float64)
            self._sums = rows[rows[:, 0].isfinite()].sum(0).tolist()
        return self._sums

    def metrics(self, objective: Objective) -> dict[str, float]:
        """Mean loss, with the accuracy or the root of the mean squared error where there is one; none of no targets."""
        total, mass, correct, count = self.sums()
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
        rows = self.rows
        if rows is None or not rows[:, 0].isfinite().any():
            raise diverged("no batch has a finite loss")
        require(self.sums()[1] > 0, what, "some that count, not all ignored or of classes of weight 0", "none")


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
