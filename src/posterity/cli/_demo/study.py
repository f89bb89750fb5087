"""The experiment of the demo: nine digits with some wrong labels, then the tenth, all measured on held-out images."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from posterity import metrics
from posterity.adaptation import adapt
from posterity.errors import MissingExtra
from posterity.learning import fit, laplace
from posterity.memory import MemoryMap, memory_map
from posterity.prediction import Prediction, predict
from posterity.progress import track

T = TypeVar("T")
Data = tuple[Tensor, Tensor]

NEW = 9  # the digit that comes later; before, it is a foreign input
TRAINING = 1200
PLANTED = 60  # wrong labels
BATCH = 64


@dataclass(frozen=True, eq=False)
class Digits:
    """Nine digits to learn, some of them with wrong labels; a tenth for later; images to be tested on."""

    images: Tensor
    labels: Tensor
    planted: Tensor
    new: Data
    known: Data
    foreign: Data

    @classmethod
    def of(cls, seed: int) -> Digits:
        """Scikit-learn's digits, shuffled by a seed."""
        try:
            from sklearn.datasets import load_digits
        except ImportError as reason:
            raise MissingExtra("demo: needs scikit-learn; pip install 'posterity[plots,models]'") from reason
        generator = torch.Generator().manual_seed(seed)
        pixels, digits = (torch.as_tensor(a) for a in load_digits(return_X_y=True))
        order = torch.randperm(len(digits), generator=generator)
        x, y = (pixels / 16).float()[order], digits.long()[order]
        train, test = (x[:TRAINING], y[:TRAINING]), (x[TRAINING:], y[TRAINING:])
        images, labels = _part(train, train[1] != NEW)
        planted = torch.randperm(len(labels), generator=generator)[:PLANTED]
        shift = torch.randint(1, NEW, (PLANTED,), generator=generator)
        labels = labels.index_copy(0, planted, (labels[planted] + shift) % NEW)
        held_out = (_part(test, test[1] != NEW), _part(test, test[1] == NEW))
        return cls(images, labels, planted, _part(train, train[1] == NEW), *held_out)

    @property
    def everything(self) -> Data:
        """All images to be tested on, known and foreign."""
        return torch.cat((self.known[0], self.foreign[0])), torch.cat((self.known[1], self.foreign[1]))


@dataclass(frozen=True, eq=False)
class Learnt:
    """A trained network as the tests see it."""

    known: Prediction
    foreign: Prediction
    seconds: float

    def numbers(self, digits: Digits) -> dict[str, float]:
        """Quality on the known digits, and how well entropy tells the unknown one."""
        probs, labels = self.known.probs, digits.known[1]
        return {
            "accuracy": metrics.accuracy(probs, labels),
            "NLL": metrics.nll(probs, labels),
            "ECE": metrics.ece(probs, labels),
            "Brier": metrics.brier(probs, labels),
            "OOD AUROC": metrics.ood_auroc(self.known.entropy, self.foreign.entropy),
            "seconds": self.seconds,
        }


@dataclass(frozen=True, eq=False)
class Study:
    """What the demo found out.

    Args:
        digits: The data.
        seed: Of everything random.
        steps: Training steps of each network.
        learnt: "AdamW" and "IVON", trained on the nine digits.
        memory: The memory map of IVON's network.
        suspects: Ids of the labels that look most like errors, as many as were planted.
        estimate: Mean held-out loss now, and without the suspects by the what-if and by retraining.
        changed: Accuracy and cost of doing nothing, of adaptation and of retraining; rows by name.
        seconds: All of it.
    """

    digits: Digits
    seed: int
    steps: int
    learnt: dict[str, Learnt]
    memory: MemoryMap
    suspects: list[int]
    estimate: dict[str, float]
    changed: pd.DataFrame
    seconds: float

    @property
    def quality(self) -> pd.DataFrame:
        """A row of numbers for each network."""
        return pd.DataFrame({name: one.numbers(self.digits) for name, one in self.learnt.items()}).T

    @property
    def found(self) -> int:
        """How many suspects were planted."""
        return len(set(self.suspects) & set(self.digits.planted.tolist()))

    @property
    def label_auroc(self) -> float:
        """How well the ranking of the map tells planted labels from right ones."""
        wrong = np.isin(self.memory.table["id"], self.digits.planted.numpy())
        scores = self.memory.table[self.memory.ranking].to_numpy()
        return metrics.ood_auroc(scores[~wrong], scores[wrong])

    def numbers(self) -> dict[str, Any]:
        """Everything that was measured, for machines."""
        return {
            "seed": self.seed,
            "quality": self.quality.to_dict("index"),
            "wrong labels": {"planted": PLANTED, "found": self.found, "AUROC": self.label_auroc},
            "what if": self.estimate,
            "change": self.changed.to_dict("index"),
            "seconds": self.seconds,
        }


def run(seed: int, steps: int) -> Study:
    """Train, ask, adapt; a few seconds each."""
    started = time.perf_counter()
    digits = Digits.of(seed)
    data = (digits.images, digits.labels)
    bar = track(("AdamW", "IVON", "memory", "adaptation", "retraining"), "demo")

    next(bar)
    rival, seconds = _timed(lambda: _fit(data, "adamw", NEW, seed, steps))
    learnt = {"AdamW": _looked_at(rival, digits, seconds)}
    next(bar)
    ours, seconds = _timed(lambda: _fit(data, "ivon", NEW, seed, steps))
    learnt["IVON"] = _looked_at(ours, digits, seconds)
    next(bar)
    memory = memory_map(ours.model, ours.posterior, data)
    suspects = [int(i) for i in memory.top(PLANTED)["id"]]
    last_layer = laplace(ours.model, data, structure="last_layer", prior_precision=1.0)
    answer = memory_map(ours.model, last_layer, data).what_if(remove=suspects).on(digits.known)
    next(bar)
    options: dict[str, Any] = {"remove": suspects, "add": digits.new, "classes": NEW + 1, "seed": seed, "epochs": 10}
    adapted, adapting = _timed(lambda: adapt(ours.model, ours.posterior, data=data, **options))
    next(bar)
    keep = torch.ones(len(digits.labels), dtype=torch.bool).index_fill(0, torch.tensor(suspects), False)
    kept = _part(data, keep)
    without = _fit(kept, "ivon", NEW, seed, steps)
    whole = (torch.cat((kept[0], digits.new[0])), torch.cat((kept[1], digits.new[1])))
    again, retraining = _timed(lambda: _fit(whole, "ivon", NEW + 1, seed, steps))
    _exhaust(bar)
    ways = {
        "doing nothing": (ours.model, 0.0, 0.0),
        "adaptation": (adapted.model, adapting, adapted.report.passes),
        "retraining": (again.model, retraining, steps * BATCH / len(whole[1])),
    }
    return Study(
        digits=digits,
        seed=seed,
        steps=steps,
        learnt=learnt,
        memory=memory,
        suspects=suspects,
        estimate={
            "now": answer.loss_before.mean().item(),
            "estimated": answer.loss_after.mean().item(),
            "retrained": nn.functional.cross_entropy(_logits(without.model, digits.known[0]), digits.known[1]).item(),
        },
        changed=pd.DataFrame({name: _changed(digits, *way) for name, way in ways.items()}).T,
        seconds=time.perf_counter() - started,
    )


def network(classes: int, seed: int) -> nn.Module:
    """One hidden layer of a hundred."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, classes))


def _fit(data: Data, method: str, classes: int, seed: int, steps: int) -> Any:
    epochs = max(1, round(steps * BATCH / len(data[1])))
    return fit(network(classes, seed), data, method=method, epochs=epochs, batch_size=BATCH, seed=seed)


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    started = time.perf_counter()
    return work(), time.perf_counter() - started


def _looked_at(run: Any, digits: Digits, seconds: float) -> Learnt:
    known, foreign = (predict(run.model, run.posterior, data[0]) for data in (digits.known, digits.foreign))
    return Learnt(known, foreign, seconds)


def _changed(digits: Digits, model: nn.Module, seconds: float, passes: float) -> dict[str, float]:
    """Accuracy on all ten digits, on the old ones and on the new one, and what it took."""
    images, labels = digits.everything
    right, new = (_logits(model, images).argmax(1) == labels).double(), labels == NEW
    shares = {"accuracy": right, "old digits": right[~new], "new digit": right[new]}
    return {name: part.mean().item() for name, part in shares.items()} | {"seconds": seconds, "passes": passes}


def _logits(model: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        return model(images)


def _part(data: Data, keep: Tensor) -> Data:
    return data[0][keep], data[1][keep]


def _exhaust(bar: Iterable[str]) -> None:
    for _ in bar:
        pass
