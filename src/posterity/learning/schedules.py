"""Learning-rate schedules: the factor on the learning rate as a function of the fraction of training done."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from posterity.errors import expected, require

Schedule = Callable[[float], float]


@dataclass(frozen=True)
class Constant:
    """The same learning rate throughout.

    Examples:
        >>> Constant()(0.7)
        1.0
    """

    def __call__(self, progress: float) -> float:
        return 1.0


@dataclass(frozen=True)
class Cosine:
    """A linear warm-up from near zero, then half a cosine from 1 down to `final`.

    Examples:
        >>> schedule = Cosine(warmup=0.1)
        >>> [round(schedule(t), 3) for t in (0.05, 0.1, 0.55, 1.0)]
        [0.5, 1.0, 0.5, 0.0]
    """

    warmup: float = 0.05
    final: float = 0.0

    def __post_init__(self) -> None:
        require(0 <= self.warmup < 1, "warmup", "a fraction of training in [0, 1)", self.warmup)

    def __call__(self, progress: float) -> float:
        if progress < self.warmup:
            return progress / self.warmup
        fallen = (progress - self.warmup) / (1 - self.warmup)
        return self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * fallen))


@dataclass(frozen=True)
class Step:
    """Multiply by `factor` at each milestone, a fraction of training.

    Examples:
        >>> [Step()(t) for t in (0.4, 0.5, 0.8)]
        [1.0, 0.1, 0.01]
    """

    milestones: tuple[float, ...] = (0.5, 0.75)
    factor: float = 0.1

    def __call__(self, progress: float) -> float:
        # round: 0.1 * 0.1 is 0.010000000000000002
        return round(self.factor ** sum(progress >= m for m in self.milestones), 12)


@dataclass(frozen=True)
class LinearThenConstant:
    """Full rate until `start`, a linear fall to `final` at `end`, then constant: the schedule of SWAG.

    Examples:
        >>> [round(LinearThenConstant(0.5, 0.75, 0.1)(t), 3) for t in (0.2, 0.625, 0.9)]
        [1.0, 0.55, 0.1]
    """

    start: float
    end: float
    final: float

    def __call__(self, progress: float) -> float:
        fallen = min(max((progress - self.start) / (self.end - self.start), 0.0), 1.0)
        return 1.0 + fallen * (self.final - 1.0)


_BY_NAME: dict[str, Callable[[], Schedule]] = {"constant": Constant, "cosine": Cosine, "step": Step}


def find_schedule(which: str | Schedule) -> Schedule:
    """A schedule by name ("constant", "cosine", "step"), or the callable that was given."""
    if callable(which):
        return which
    if which not in _BY_NAME:
        raise expected("schedule", f"one of {sorted(_BY_NAME)} or a function of the fraction done", which)
    return _BY_NAME[which]()
