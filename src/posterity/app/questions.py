"""The questions of the application, answered by a memory map: what if, nearest neighbours, who moves a prediction."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from posterity.adaptation import measure
from posterity.app.jobs import Progress
from posterity.app.source import Estimate, MeasuredChange, Ranked
from posterity.batches import Batch, Batches, batches
from posterity.curvature import kernel, pullback, pushforward
from posterity.errors import require
from posterity.memory import MemoryMap, Outcome
from posterity.memory.ids import places
from posterity.memory.scores import test_loss_direction
from posterity.posterior import FittedModel

MOVED = 12  # test examples that an estimate lists
CANDIDATES = 8  # times k: how many the first look at neighbours keeps for the second


@dataclass(frozen=True, eq=False)
class Questions:
    """A memory map that answers, one question at a time: each brings the model to its mean and back.

    Args:
        m: A map with its model and data.
        test_data: What estimates are measured on; without it, the changed examples themselves.
    """

    m: MemoryMap
    test_data: Any = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    @cached_property
    def trained(self) -> FittedModel:
        """Model, posterior and data."""
        trained = self.m.trained
        require(trained is not None, "memory map", "one with its model and data", "a table alone")
        assert trained is not None
        return trained

    @cached_property
    def stream(self) -> Batches:
        """The test data in batches, the same ones at every pass: positions identify examples."""
        found = batches(self.test_data)
        require(found.keeps_order, "test", "a loader in the order of its data", "one that shuffles or samples")
        return found

    @cached_property
    def test(self) -> pd.DataFrame:
        """Test examples by position: label, prediction and loss."""
        trained, law = self.trained, self.trained.likelihood
        labels, means, losses = [], [], []
        with self.lock, trained.at_mean():
            for batch in self.stream:
                batch = batch.to(trained.device)
                f = trained.outputs(batch.inputs)
                y = trained.targets(f, batch.targets)
                labels.append(y.cpu())
                means.append(law.mean(f).double().cpu())
                losses.append(law.loss(f, y).double().cpu())
        y, loss = torch.cat(labels), torch.cat(losses)
        label, prediction = _single(y), self.decided(torch.cat(means))
        return pd.DataFrame(
            {"id": np.arange(len(loss)), "label": label, "prediction": prediction, "loss": loss.numpy()}
        )

    def decided(self, means: Tensor) -> np.ndarray[Any, Any]:
        """Predictions from means (N, K): a class where there are classes, otherwise the first mean."""
        return _single(self.trained.likelihood.decide(means) if self.has_classes else means)

    @property
    def has_classes(self) -> bool:
        """Whether predictions are classes."""
        return self.trained.likelihood.is_classification and "label" in self.m.columns  # else several outputs

    @property
    def measured_on(self) -> str:
        """What estimates and measurements are made on, in words."""
        return "changed examples themselves" if self.test_data is None else "test examples"

    def what_if(self, remove: Sequence[int], relabel: Mapping[int, Any]) -> Estimate:
        """The estimated effect of removing some examples and relabelling others."""
        with self.lock:
            w = self.m.what_if(remove=remove, relabel=relabel)
            outcome = w.on(self.test_data)
        if self.test_data is None:
            first = "label" if "label" in self.m.columns else "label_0"  # of several outputs
            labels = self.m.columns.set_index("id")[first].loc[outcome.ids.tolist()].to_numpy()
        else:
            labels = self.test["label"].to_numpy()
        return self._estimate(outcome, labels)

    def measure(self, remove: Sequence[int], relabel: Mapping[int, Any], progress: Progress) -> MeasuredChange:
        """The measured effect of the same: trained with and without it, on a copy of the model."""
        with self.lock:
            own = with_own_model(self.m)
        found = measure(own, remove=remove, relabel=relabel, on=self.test_data, progress=progress)
        if not self.has_classes:
            found = replace(found, accuracy=None, accuracy_change=None, accuracy_low=None, accuracy_high=None)
        return MeasuredChange(**vars(found), measured_on=self.measured_on)

    def _estimate(self, outcome: Outcome, labels: np.ndarray[Any, Any]) -> Estimate:
        reliability = outcome.reliability
        before, after = self.decided(outcome.before), self.decided(outcome.after)
        change = (outcome.loss_after - outcome.loss_before).numpy()
        order = np.abs(change).argsort()[::-1][:MOVED]
        moved = [
            {
                "id": int(outcome.ids[i]) if self.test_data is None else int(i),
                "label": labels[i].item(),
                "before": before[i].item(),
                "after": after[i].item(),
                "loss_change": float(change[i]),
            }
            for i in order
        ]
        right: list[float | None] = [None, None]
        if (
            self.has_classes and not reliability.warning
        ):  # an estimate to be taken with care is a direction, not an accuracy
            right = [float((p == labels).mean()) for p in (before, after)]
        return Estimate(
            examples=len(change),
            measured_on=self.measured_on,
            loss_before=float(outcome.loss_before.mean()),
            loss_after=float(outcome.loss_after.mean()),
            accuracy_before=right[0],
            accuracy_after=right[1],
            moved=moved,
            changed=int((before != after).sum()) if self.has_classes else None,
            warning=reliability.warning,
            direction=reliability.ranks,
        )

    def influences(self, example: int, k: int) -> Ranked:
        """The training examples whose absence would change the loss of one test example most."""
        with self.lock:
            batch = self.stream.take(torch.tensor([example]))
            found = self.m.influence((batch.inputs, batch.targets))
        order = found.abs().to_numpy().argsort()[::-1][:k]
        return [(int(found.index[i]), float(found.iloc[i])) for i in order]

    def neighbours(self, example: int, k: int) -> Ranked:
        """The nearest examples by the kernel: tr J_i Σ J_jᵀ / sqrt(tr V_i · tr V_j), a cosine.

        One tangent pass along Σ J_iᵀ u, u the output that the example is predicted to be, finds candidates among all
        examples; the whole kernel then ranks those.
        """
        trained, columns = self.trained, self.m.columns
        ids = torch.as_tensor(columns["id"].to_numpy(copy=True))
        scale = columns["variance"].to_numpy() ** 0.5
        row = int((ids == example).nonzero()[0])
        score = np.full(len(ids), -np.inf)
        with self.lock, trained.at_mean():
            inputs = _joined(trained.examples(ids[row : row + 1], torch.tensor([row])))
            f = trained.outputs(inputs)
            u = torch.zeros_like(f).scatter_(-1, f.argmax(-1, keepdim=True), 1.0)
            direction = trained.covariance.times(pullback(trained.model, inputs, u, trained.covariance.names))
            for b in trained.batches("neighbours"):
                moved = (pushforward(trained.model, b.inputs, direction) @ u[0]).double().cpu().numpy()
                rows = self._rows(b)
                score[rows] = moved / np.maximum(scale[rows], 1e-30)
            score[row] = -np.inf
            best = torch.as_tensor(score.argsort()[::-1][: min(CANDIDATES * k, len(ids) - 1)].copy()).sort().values
            found: list[tuple[int, float]] = []
            for b in trained.examples(ids[best], best):
                near = kernel(trained.model, inputs, b.inputs, trained.covariance)[0].diagonal(dim1=-2, dim2=-1)
                close = near.sum(-1).double().cpu().numpy() / np.maximum(scale[row] * scale[self._rows(b)], 1e-30)
                found += zip(b.ids.tolist(), close.tolist())
        return sorted(found, key=lambda pair: -pair[1])[:k]

    def _rows(self, batch: Batch) -> np.ndarray[Any, Any]:
        """The positions of a batch's examples in the table."""
        return places(self._index, batch.ids)

    @cached_property
    def _index(self) -> pd.Index[Any]:
        return pd.Index(self.m.columns["id"])

    def effects(self) -> pd.DataFrame:
        """First-order changes of the mean test loss: without each example, and under its suspected label.

        Without it: ∇Lᵀ Σ J_iᵀ e_i. Relabelled from y to c: ∇Lᵀ Σ J_iᵀ (onehot c − onehot y).
        """
        trained, law = self.trained, self.trained.likelihood
        removed = np.full(len(self.m), np.nan)
        relabelled = removed.copy() if law.has_class_axis else None
        with self.lock, trained.at_mean():
            direction = test_loss_direction(trained, self.test_data, trained.data.batch_size)
            for batch in trained.batches("effects"):
                f = trained.outputs(batch.inputs)
                y = trained.targets(f, batch.targets)
                e, moved = law.residual(f, y), pushforward(trained.model, batch.inputs, direction)
                rows = self._rows(batch)
                removed[rows] = (e * moved).sum(-1).double().cpu().numpy()
                if relabelled is not None:
                    suspected = self.m.columns["loo_prediction"].to_numpy()[rows].astype(np.int64)
                    new = torch.as_tensor(suspected, device=y.device)
                    relabelled[rows] = (e - law.residual(f, new)).mul(moved).sum(-1).double().cpu().numpy()
        columns = {"id": self.m.columns["id"].to_numpy(), "remove": removed}
        return pd.DataFrame(columns if relabelled is None else columns | {"relabel": relabelled})


def with_own_model(m: MemoryMap) -> MemoryMap:
    """The same map with a copy of its model: questions come at any time, when the model itself may be training."""
    if m.trained is None:
        return m
    return replace(m, trained=replace(m.trained, model=copy.deepcopy(m.trained.model)))


def _single(y: Tensor) -> np.ndarray[Any, Any]:
    """Targets as one column."""
    return (y if y.dim() == 1 else y.reshape(len(y), -1)[:, 0]).numpy()


def _joined(found: list[Batch]) -> Any:
    require(len(found) == 1, "example", "one batch", len(found))
    return found[0].inputs
