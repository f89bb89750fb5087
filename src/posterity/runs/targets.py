"""What is to be predicted: classes, an amount or a count, and how it is written in the user's own terms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from posterity.errors import InvalidInput, expected
from posterity.runs.columns import as_text, from_json
from posterity.runs.written import marked, numbers, read_numbers, spelling

_FEW = 20  # whole numbers with no more distinct values are classes, unless told otherwise

Values = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Target(ABC):
    """The column that is predicted."""

    name: str
    task: ClassVar[str]
    likelihood: ClassVar[str]
    unknown: ClassVar[str]  # what a value is that predictions cannot be compared with

    @property
    @abstractmethod
    def outputs(self) -> int:
        """Number of outputs that a model needs."""

    @abstractmethod
    def encode(self, values: pd.Series[Any]) -> Tensor:
        """Values of the user as targets of a model."""

    @abstractmethod
    def decode(self, values: Values) -> Values:
        """Targets or predictions of a model in the terms of the user."""

    @abstractmethod
    def knows(self, values: pd.Series[Any]) -> Values:
        """Which values are there, and can be compared with predictions."""

    def read(self, values: pd.Series[Any]) -> Values:
        """The values as numbers, NaN where they are none."""
        return numbers(values)

    def remark(self) -> str | None:
        """A note on how its values are read, where that is not obvious."""
        return None

    def extended(self, values: pd.Series[Any]) -> Target:
        """The same target, ready for new values; classes that were not there before are added."""
        return self

    def settings(self) -> dict[str, Any]:
        """What is needed to build it again."""
        return {"task": self.task, **asdict(self)}


@dataclass(frozen=True)
class Classes(Target):
    """One of several classes."""

    names: tuple[str, ...]
    task = "classes"
    likelihood = "categorical"
    unknown = "a class that was not in training"

    @classmethod
    def of(cls, name: str, values: pd.Series[Any]) -> Classes:
        """The classes that occur, numbers in their order."""
        counts = Counter(as_text(values))
        if len(counts) < 2:
            raise InvalidInput(f"target {name!r}: expected at least two classes, got {list(counts)}")
        if len(counts) > max(_FEW, len(values) / 4):
            amounts = np.isfinite(numbers(values)).all()
            hint = (
                "choose another --target, or --task amount" if amounts else "choose another --target, or fewer classes"
            )
            raise InvalidInput(f"target {name!r}: expected classes, got {len(counts)} different values; {hint}")
        return cls(name, tuple(sorted(counts, key=_order)))

    @property
    def outputs(self) -> int:
        return len(self.names)

    def encode(self, values: pd.Series[Any]) -> Tensor:
        place = {name: i for i, name in enumerate(self.names)}
        found = as_text(values)
        for text in found:
            if text not in place:
                raise expected(f"target {self.name!r}", f"one of the classes {_some(self.names)}", text or "none")
        return torch.tensor([place[text] for text in found], dtype=torch.int64)

    def knows(self, values: pd.Series[Any]) -> Values:
        return np.isin(as_text(values), self.names)

    def decode(self, values: Values) -> Values:
        return np.array(self.names, dtype=object)[np.asarray(values, dtype=np.int64)]

    def extended(self, values: pd.Series[Any]) -> Classes:
        new = sorted(set(as_text(values)) - {*self.names, ""}, key=_order)
        return replace(self, names=(*self.names, *new))


@dataclass(frozen=True)
class Amount(Target):
    """A real number, standardised for the model."""

    offset: float
    scale: float
    decimal: str = "."
    unit: str = ""
    task = "amount"
    likelihood = "gaussian"
    unknown = "no finite number"

    @classmethod
    def of(cls, name: str, values: pd.Series[Any], standardise: bool) -> Amount:
        """The column, learnt from its training values."""
        plain = cls(name, 0.0, 1.0, *read_numbers(values)[1:])
        found = _read(plain, values, "finite numbers (or --task classes)")
        return replace(plain, offset=float(found.mean()), scale=float(found.std()) or 1.0) if standardise else plain

    @property
    def outputs(self) -> int:
        return 1

    def encode(self, values: pd.Series[Any]) -> Tensor:
        scaled = (_read(self, values, "finite numbers") - self.offset) / self.scale
        return torch.tensor(scaled, dtype=torch.float32).unsqueeze(1)

    def knows(self, values: pd.Series[Any]) -> Values:
        return np.isfinite(self.read(values))

    def read(self, values: pd.Series[Any]) -> Values:
        return numbers(values, self.decimal, self.unit)

    def remark(self) -> str | None:
        return spelling(self.name, self.decimal, self.unit)

    def decode(self, values: Values) -> Values:
        return np.asarray(values, dtype=np.float64) * self.scale + self.offset


@dataclass(frozen=True)
class Count(Target):
    """A whole number 0, 1, 2, ..., Poisson-distributed."""

    task = "count"
    likelihood = "poisson"
    unknown = "no count 0, 1, 2, ..."

    @classmethod
    def of(cls, name: str, values: pd.Series[Any]) -> Count:
        """The column, once all its training values are counts."""
        _read(cls(name), values, "counts 0, 1, 2, ... (or --task amount)")
        return cls(name)

    @property
    def outputs(self) -> int:
        return 1

    def encode(self, values: pd.Series[Any]) -> Tensor:
        return torch.tensor(_read(self, values, "counts 0, 1, 2, ..."), dtype=torch.float32).unsqueeze(1)

    def knows(self, values: pd.Series[Any]) -> Values:
        found = numbers(values)
        return (found >= 0) & (found == found.round())

    def decode(self, values: Values) -> Values:
        return np.asarray(values, dtype=np.float64)


TASKS: dict[str, type[Target]] = {kind.task: kind for kind in (Classes, Amount, Count)}


def infer_target(name: str, values: pd.Series[Any], task: str | None, standardise: bool) -> Target:
    """The target by its training values: words and few whole numbers are classes, other numbers are amounts."""
    if task is not None and task not in TASKS:
        raise expected("task", f"one of {sorted(TASKS)}", task)
    if task is None:
        found = pd.Series(read_numbers(values)[0])
        grouped = marked(values) or bool((found == found.round()).all())  # "50%" and "under 3" may be names of classes
        task = "classes" if found.isna().any() or (grouped and found.nunique() <= _FEW) else "amount"
    if task == "classes":
        return Classes.of(name, values)
    return Amount.of(name, values, standardise) if task == "amount" else Count.of(name, values)


def restore_target(settings: dict[str, Any]) -> Target:
    """The target that `settings` describes."""
    values = from_json(settings)
    return TASKS[values.pop("task")](**values)


def _read(target: Target, values: pd.Series[Any], wanted: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Values as numbers, after a check that the target has all of them."""
    known = target.knows(values)
    if not known.all():
        raise expected(f"target {target.name!r}", wanted, values[~known].iloc[0])
    return target.read(values)


def _order(text: str) -> tuple[bool, float, str]:
    try:
        return False, float(text), text
    except ValueError:
        return True, 0.0, text


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:10]) + (" ..." if len(names) > 10 else "")
