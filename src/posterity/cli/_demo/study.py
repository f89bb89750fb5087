"""The experiment of the demo: a table beside AdamW; nine digits with some wrong labels, then the tenth."""

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
from posterity.learning import Run, fit
from posterity.memory import MemoryMap, memory_map
from posterity.prediction import Prediction, predict
from posterity.progress import track

T = TypeVar("T")
Data = tuple[Tensor, Tensor]

NEW = 9  # the digit that comes later; before, it is a foreign input
TRAINING = 1200
PLANTED = 60  # wrong labels
BATCH = 64
OURS, STOPPED = "po.fit", "AdamW, best length"
CUTS = 3  # of the table into halves


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
class Tumours:
    """One network, trained in three ways on halves of scikit-learn's breast cancer, and tested on the other halves.

    Args:
        rows: Tumours that a network learns from.
        labels: Of the held-out ones, of all cuts.
        probs: Predictions of those, by name of the training.
        costs: Mean steps and seconds of each training.
    """

    rows: int
    labels: Tensor
    probs: dict[str, Tensor]
    costs: dict[str, dict[str, float]]

    @property
    def quality(self) -> pd.DataFrame:
        """A row of numbers for each training."""
        named = {"accuracy": metrics.accuracy, "NLL": metrics.nll, "ECE": metrics.ece}
        found = {
            name: {key: measure(probs, self.labels) for key, measure in named.items()} | self.costs[name]
            for name, probs in self.probs.items()
        }
        return pd.DataFrame(found).T


def learn_tumours(seed: int, steps: int) -> Tumours:
    """AdamW for so many steps, AdamW for as long as cross-validation finds best, and `po.fit` as it is."""
    from sklearn.datasets import load_breast_cancer

    cells, kinds = (torch.as_tensor(a) for a in load_breast_cancer(return_X_y=True))
    half = len(kinds) // 2
    ways: dict[str, dict[str, Any]] = {
        "AdamW": {"method": "adamw", "epochs": max(1, round(steps * BATCH / half))},
        STOPPED: {"method": "adamw"},
        OURS: {},
    }
    labels: list[Tensor] = []
    probs: dict[str, list[Tensor]] = {name: [] for name in ways}
    costs = {name: {"steps": 0.0, "seconds": 0.0} for name in ways}
    for cut in range(seed, seed + CUTS):
        order = torch.randperm(len(kinds), generator=torch.Generator().manual_seed(cut))
        x, y = cells.float()[order], kinds.long()[order]
        x = (x - x[:half].mean(0)) / x[:half].std(0)
        labels.append(y[half:])
        for name, way in ways.items():
            torch.manual_seed(cut)
            network = nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
            started = time.perf_counter()
            run = fit(network, (x[:half], y[:half]), batch_size=BATCH, seed=cut, progress=False, **way)
            costs[name]["seconds"] += (time.perf_counter() - started) / CUTS
            costs[name]["steps"] += run.steps / CUTS
            probs[name].append(predict(run.model, run.posterior, x[half:]).probs)
    return Tumours(half, torch.cat(labels), {name: torch.cat(found) for name, found in probs.items()}, costs)


@dataclass(frozen=True, eq=False)
class Study:
    """What the demo found out.

    Args:
        tumours: A table, learnt by AdamW and by `po.fit`.
        digits: The pictures.
        seed: Of everything random.
        steps: Training steps of AdamW, and of each network of digits.
        known: Predictions of the nine digits that were learnt.
        foreign: Predictions of the tenth.
        memory: The memory map of the network of digits.
        suspects: Ids of the labels that look most like errors, as many as were planted.
        estimate: Mean held-out loss now, and without the suspects by the what-if and by retraining.
        changed: Accuracy and cost of doing nothing, of adaptation and of retraining; rows by name.
        seconds: All of it.
    """

    tumours: Tumours
    digits: Digits
    seed: int
    steps: int
    known: Prediction
    foreign: Prediction
    memory: MemoryMap
    suspects: list[int]
    estimate: dict[str, float]
    changed: pd.DataFrame
    seconds: float

    @property
    def accuracy(self) -> float:
        """Of the digits that were learnt."""
        return metrics.accuracy(self.known.probs, self.digits.known[1])

    @property
    def foreign_auroc(self) -> float:
        """How well entropy tells the unknown digit from known ones."""
        return metrics.ood_auroc(self.known.entropy, self.foreign.entropy)

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

    @property
    def direction(self) -> str:
        """Where the loss goes without the suspects, as estimated; a group this large is too much for a size."""
        return "lower" if self.estimate["estimated"] < self.estimate["now"] else "higher"

    def numbers(self) -> dict[str, Any]:
        """Everything that was measured, for machines."""
        return {
            "seed": self.seed,
            "quality": self.tumours.quality.to_dict("index"),
            "digits": {"accuracy": self.accuracy, "OOD AUROC": self.foreign_auroc},
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
    bar = track(("tumours", "digits", "memory", "adaptation", "retraining"), "demo")

    next(bar)
    table = learn_tumours(seed, steps)
    next(bar)
    ours = _fit(data, NEW, seed, steps)
    known, foreign = (predict(ours.model, ours.posterior, part[0]) for part in (digits.known, digits.foreign))
    next(bar)
    memory = memory_map(ours.model, ours.posterior, data)
    suspects = [int(i) for i in memory.top(PLANTED)["id"]]
    answer = memory.what_if(remove=suspects).on(digits.known)
    next(bar)
    options: dict[str, Any] = {"remove": suspects, "add": digits.new, "classes": NEW + 1, "seed": seed, "epochs": 10}
    adapted, adapting = _timed(lambda: adapt(ours.model, ours.posterior, data=data, **options))
    next(bar)
    keep = torch.ones(len(digits.labels), dtype=torch.bool).index_fill(0, torch.tensor(suspects), False)
    kept = _part(data, keep)
    without = _fit(kept, NEW, seed, steps)
    whole = (torch.cat((kept[0], digits.new[0])), torch.cat((kept[1], digits.new[1])))
    again, retraining = _timed(lambda: _fit(whole, NEW + 1, seed, steps))
    _exhaust(bar)
    ways = {
        "doing nothing": (ours.model, 0.0, 0.0),
        "adaptation": (adapted.model, adapting, adapted.report.passes),
        "retraining": (again.model, retraining, steps * BATCH / len(whole[1])),
    }
    return Study(
        tumours=table,
        digits=digits,
        seed=seed,
        steps=steps,
        known=known,
        foreign=foreign,
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


def _fit(data: Data, classes: int, seed: int, steps: int) -> Run:
    epochs = max(1, round(steps * BATCH / len(data[1])))
    return fit(network(classes, seed), data, epochs=epochs, batch_size=BATCH, seed=seed)


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    started = time.perf_counter()
    return work(), time.perf_counter() - started


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
