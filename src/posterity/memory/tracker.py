"""`MemoryTracker`: what happens to every example during training, at little more than the cost of looking."""

from __future__ import annotations

from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from posterity.batches import Batch, Batches, in_order
from posterity.curvature import Covariance
from posterity.curvature.prediction import watch
from posterity.curvature.products import product
from posterity.errors import InvalidInput, expected, require, require_whole
from posterity.learning import Callback, Moment
from posterity.learning.objective import infer_likelihood
from posterity.likelihoods import Likelihood
from posterity.likelihoods import likelihood as likelihood_of
from posterity.memory.ids import unique
from posterity.memory.optimizer_state import covariance_of
from posterity.memory.scores import confidence_of
from posterity.progress import track
from posterity.trees import evaluating


class MemoryTracker(Callback):
    """Accumulates scores of every example over snapshots of training.

    A snapshot is one forward, one backward and one tangent pass over the data, for any number of classes. It
    takes the covariance from the state of the optimizer. Examples that stay hard for long have large accumulated
    scores even when the network ends up memorising them, which is why cleaning ranks by these and not by final ones.

    Call `snapshot` now and then, or give the tracker to `fit` as a callback (with `optimizer=None`: it uses the one
    that trains).

    Args:
        model: The model that is trained.
        optimizer: Its optimizer: IVON and its kin, Adam's (squared gradients), or any other (as SGD).
        data: The training data, with ids or in a fixed order.
        likelihood: What the outputs mean; by default inferred from types and shapes.
        every: As a callback: epochs between snapshots.
        batch_size: Examples at a time, where `data` is not a loader.
        n: How many examples the model is trained on, where `data` are a part of them; by default, all of `data`.

    Examples:
        >>> x, y = torch.randn(30, 2), torch.randint(0, 2, (30,))
        >>> model = nn.Linear(2, 2)
        >>> tracker = MemoryTracker(model, torch.optim.SGD(model.parameters(), lr=0.1), (x, y))
        >>> tracker.snapshot()
        >>> len(tracker.table)
        30

    References:
        Swayamdipta et al., "Dataset cartography", 2020 (confidence, variability, correctness).
        Pleiss et al., "Identifying mislabeled data using the area under the margin ranking", 2020 (margin).
        Toneva et al., "An empirical study of example forgetting", 2019 (forgetting).
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | None,
        data: Any,
        *,
        likelihood: str | Likelihood | None = None,
        every: int = 1,
        batch_size: int = 256,
        n: int | None = None,
    ) -> None:
        require_whole("every", every)
        known = optimizer is None or isinstance(optimizer, Optimizer)
        require(known, "optimizer", "a torch.optim.Optimizer", type(optimizer).__name__)
        self.model, self.optimizer, self.every = model, optimizer, every
        self.data: Batches = in_order(data, batch_size)
        if n is not None:
            require_whole("n", n, least=self.data.n)
        self.n = n or self.data.n
        self.likelihood = None if likelihood is None else likelihood_of(likelihood)
        self.snapshots = 0
        self.ids = torch.empty(0, dtype=torch.int64)
        self._sums: dict[str, Tensor] = {}
        self._was_right: Tensor | None = None
        self._history: list[dict[str, float]] = []

    def epoch(self, moment: Moment) -> None:
        """After an epoch of `fit`: a snapshot, every so many epochs."""
        if moment.epoch % self.every == 0:
            self.snapshot(moment.optimizer, step=moment.step)

    def snapshot(self, optimizer: Optimizer | None = None, *, step: int | None = None) -> None:
        """Evaluate every example once, at the present weights.

        Args:
            optimizer: Another optimizer than that of the constructor.
            step: A number for the history; by default the number of the snapshot.
        """
        optimizer = optimizer or self.optimizer
        if optimizer is None:
            raise expected("optimizer", "one here, in the constructor, or from fit", None)
        covariance = covariance_of(optimizer, self.model, self.n)
        ids, parts = [], []
        for batch in track(self.data, "snapshot", total=len(self.data)):
            ids.append(batch.ids.cpu())
            parts += self._look(batch, covariance)
        self._add(torch.cat(ids), {name: torch.cat([p[name] for p in parts]) for name in parts[0]}, step)

    @property
    def table(self) -> pd.DataFrame:
        """One row for each example, means over the snapshots.

        id; self_influence eᵀVe; loo_nll; loss; and of classes: confidence p(y), variability (its standard
        deviation), margin (the area under the margin), correctness (share of snapshots) and forgetting (how often
        it was right and then wrong again).
        """
        require(self.snapshots > 0, "tracker", "at least one snapshot", "none")
        table = {name: (total / self.snapshots).numpy() for name, total in self._sums.items()}
        if "confidence" in table:
            square = table.pop("confidence_squared")
            table["variability"] = (square - table["confidence"] ** 2).clip(min=0) ** 0.5
            table["forgetting"] = table["forgetting"] * self.snapshots
        return pd.DataFrame({"id": self.ids.numpy(), **table})

    @property
    def history(self) -> pd.DataFrame:
        """One row for each snapshot: step, and the means of loss and loo_nll over the examples."""
        return pd.DataFrame(self._history)

    def _look(self, batch: Batch, covariance: Covariance) -> list[dict[str, Tensor]]:
        found = []
        with evaluating(self.model), watch(self.model, covariance, None) as tape:
            batch = batch.to(tape.device)
            for part, step in tape.passes(batch.inputs, roots=1):
                f, y = step.outputs, batch.targets[part]
                if self.likelihood is None:
                    self.likelihood = infer_likelihood(f, y)
                y = self.likelihood.as_targets(f, y)
                e = self.likelihood.residual(f, y)
                found.append(_scores(self.likelihood, f, y, e, product(step, e, covariance)))
        return found

    def _add(self, ids: Tensor, found: dict[str, Tensor], step: int | None) -> None:
        order = unique(ids).argsort()  # a shuffled loader with ids brings another order every time
        ids, found = ids[order], {name: column[order] for name, column in found.items()}
        if self.snapshots and not torch.equal(ids, self.ids):
            raise InvalidInput("data: expected the same ids at every snapshot, got others")
        for name, column in found.items():
            bad = ids[~torch.isfinite(column)]
            require(len(bad) == 0, name, "finite scores", f"NaN or infinity for the ids {bad[:5].tolist()}")
        if "correctness" in found:
            right = found["correctness"]
            lost = torch.zeros_like(right) if self._was_right is None else self._was_right * (1 - right)
            found["forgetting"], self._was_right = lost, right
        self.ids = ids
        self._sums = {name: column + self._sums.get(name, 0) for name, column in found.items()}
        self.snapshots += 1
        means = {name: found[name].mean().item() for name in ("loss", "loo_nll")}
        self._history.append({"step": self.snapshots if step is None else step, **means})


def _scores(likelihood: Likelihood, f: Tensor, y: Tensor, e: Tensor, moved: Tensor) -> dict[str, Tensor]:
    """Scores of one pass, from outputs, residuals and V e."""
    found = {
        "self_influence": (e * moved).sum(-1),
        "loo_nll": likelihood.loss(f + moved, y),
        "loss": likelihood.loss(f, y),
    }
    probabilities = likelihood.has_class_axis and y.is_floating_point()
    if likelihood.is_classification and not probabilities:
        confidence, margin = confidence_of(likelihood, f, y), likelihood.margin(f, y)
        found |= {"confidence": confidence, "confidence_squared": confidence**2}
        found |= {"margin": margin, "correctness": (margin > 0).to(f)}
    return {name: column.double().cpu() for name, column in found.items()}
