"""What a training is asked for: the arguments of `fit` as one object."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from posterity.errors import expected, require, require_positive, require_seed, require_whole
from posterity.inputs import Inputs
from posterity.learning.callbacks import Callback
from posterity.learning.folds import PARTS
from posterity.learning.learners import METHODS, Learner, TrainingPlan
from posterity.learning.length import AUTO
from posterity.learning.schedules import Schedule
from posterity.likelihoods import Likelihood
from posterity.trees import fingerprint

_FREE_TO_CHANGE = ("resume", "progress", "checkpoint", "checkpoint_every", "folds")  # when a run is resumed
_PLAIN = {"accumulate": 1, "label_smoothing": 0.0}  # arguments that are not None when they ask for nothing


@dataclass(frozen=True)
class FitSettings:
    """The arguments of `fit`, where they are explained, checked and in one piece."""

    method: str = "variational"
    likelihood: str | Likelihood | None = None
    epochs: int | str | None = None
    folds: str = "random"
    batch_size: int = 64
    lr: float | None = None
    schedule: str | Schedule | None = None
    validation: Any = None
    patience: int | None = None
    n: int | None = None
    seed: int = 0
    augment: Callable[[Inputs], Inputs] | None = None
    class_weights: Sequence[float] | Tensor | None = None
    label_smoothing: float = 0.0
    ignore_index: int | None = None
    penalty: Callable[[nn.Module], Tensor] | None = None
    accumulate: int = 1
    clip: float | None = None
    amp: str | None = None
    class_names: Sequence[str] | None = None
    callbacks: Sequence[Callback] = ()
    checkpoint: str | Path | None = None
    checkpoint_every: int | None = None
    resume: bool = False
    progress: bool | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given = vars(self) | {"options": {name: _plain(value) for name, value in self.options.items()}}
        for name, value in given.items():
            object.__setattr__(self, name, _plain(value))
        if isinstance(self.epochs, str):
            require(self.epochs == AUTO, "epochs", f"a whole number, or {AUTO!r}", self.epochs)
            require(self.checkpoint is None, "epochs", "a whole number beside a checkpoint", self.epochs)
        elif self.epochs is not None:
            require_whole("epochs", self.epochs)
        require(self.folds in PARTS, "folds", f"one of {sorted(PARTS)}", self.folds)
        for name in ("batch_size", "accumulate", "n", "patience", "checkpoint_every"):
            if getattr(self, name) is not None:
                require_whole(name, getattr(self, name))
        require_seed(self.seed)
        if self.lr is not None:
            require_positive("lr", self.lr)
        require(self.clip is None or self.clip > 0, "clip", "a positive number", self.clip)
        require(self.patience is None or self.validation is not None, "patience", "validation data beside it", None)
        needs_folder = self.resume or self.checkpoint_every is not None
        require(self.checkpoint is not None or not needs_folder, "checkpoint", "a folder", None)

    def learner_type(self) -> type[Learner]:
        """The class of the method, after a check of its options."""
        if self.method not in METHODS:
            raise expected("method", f"one of {sorted([*METHODS, 'ensemble'])}", self.method)
        learner = METHODS[self.method]
        for name in self.options:
            if name not in learner.options():
                own = [key for key in vars(self) if key not in ("method", "options")]
                close = get_close_matches(name, [*own, *learner.options()], 1)
                meant = f" (did you mean {close[0]!r}?)" if close else ", or an argument of po.fit such as lr"
                raise expected(f"option of method {self.method!r}", f"one of {learner.options()}{meant}", name)
        for name in learner.refused:
            value = getattr(self, name)
            if value is not None and not (name in _PLAIN and value == _PLAIN[name]):
                raise expected(name, f"its default, because method {self.method!r} does not use it", value)
        return learner

    def compared(self, model: nn.Module, plan: TrainingPlan) -> dict[str, str]:
        """What a checkpoint compares before it lets a run go on."""
        asked = {name: v for name, v in vars(self).items() if name not in _FREE_TO_CHANGE}
        asked |= {f"option {name}": str(v) if isinstance(v, (list, tuple)) else v for name, v in self.options.items()}
        asked |= {"n": plan.n, "steps": plan.steps, "lr": plan.lr, "architecture": fingerprint(model)}
        if self.class_weights is not None:
            asked["class_weights"] = str(numbers("class_weights", self.class_weights).tolist())
        return {name: repr(v) for name, v in asked.items() if isinstance(v, (int, float, str))}


def _plain(value: Any) -> Any:
    """Numbers of numpy as Python's, which have no bounds and are compared with a checkpoint's."""
    return value.item() if isinstance(value, np.generic) else value


def numbers(what: str, values: Any) -> Tensor:
    """A sequence of numbers as a tensor."""
    try:
        return torch.as_tensor(values, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError):
        raise expected(what, "a sequence of numbers", values) from None
