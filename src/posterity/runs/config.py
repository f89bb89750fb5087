"""How a run is trained: the options of a user, and their defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from posterity.errors import expected, require, require_positive, require_whole
from posterity.learning.folds import FOLDS
from posterity.learning.learners import METHODS
from posterity.runs.heads import best_model, check_head
from posterity.runs.networks import HEAD, RESIDUAL
from posterity.runs.predicting import SAMPLES
from posterity.runs.preprocessing import Preprocessing
from posterity.runs.snapshots import LARGEST, PICTURE
from posterity.runs.table_network import MEMBERS
from posterity.runs.table_settings import LONG, LR, LR_OF_CORRECTIONS, WIDE, usual_batch, usual_decay
from posterity.runs.targets import Amount, Classes

# Precision of IVON's prior on every weight, and the number of rows below which it is less in proportion: amounts are
# overfitted under a weak prior, while nothing would be learnt from few labels under a strong one.
PRIOR, FEW_LABELS, FEW_AMOUNTS = 10.0, 1000, 120
FEWEST_ROWS = 20  # below which no part can be spared for cross-validation
USUAL = 64  # examples a step, but for tables
_METHODS = {HEAD: "laplace", "linear": "ivon"}  # of models that do not learn with "variational"
_TABLE = ("tabular", RESIDUAL)
_OF_IVON = ("ess", "hess_init")  # options that say which method is meant
_GAUSSIAN = ("variational", "ivon", "bayes_by_backprop")  # methods whose posterior answers at any moment


@dataclass(frozen=True)
class Config:
    """How a run is trained; None is decided by the data and by a short probe, and then written down.

    Args:
        model: "linear", "mlp", "tabular", "residual", "cnn", "head" or "module:factory"; by default "head" for classes
            of texts and pictures that a frozen network reads, "cnn" for other pictures, else "tabular", "residual" for
            amounts, or "mlp" of width 128 from 10 000 rows on.
        hidden: Widths of the hidden layers, where the model's own are not meant.
        method: As in `posterity.fit`; "auto" is "laplace" for the model "head", "ivon" for "linear" or with one of its
            options, and "variational" for others.
        epochs: Passes over the data; by default as many as cross-validation finds best.
        folds: Parts of the cross-validation, which also finds wrong labels; 0 for none.
        batch_size: Examples a step; by default 64, and for tables at most 128, or 1024 where they are long.
        lr: Learning rate.
        options: What the method takes beyond that, such as ess, hess_init and prior.
        dropout: Rate of dropout layers; 0.1 for the method "dropout".
        seed: Seed of everything random.
        samples: Draws of the weights for each prediction.
        track: Draw the memory map at several epochs; by default where that is cheap.
        device: Where to train.
        prediction: How predictions are made, see `posterity.predict`.
    """

    model: str | None = None
    hidden: tuple[int, ...] | None = None
    method: str = "auto"
    epochs: int | None = None
    folds: int = FOLDS
    batch_size: int | None = None
    lr: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    dropout: float | None = None
    seed: int = 0
    samples: int = SAMPLES
    track: bool | None = None
    device: str = "cpu"
    prediction: str = "sampled"

    def __post_init__(self) -> None:
        known = sorted([*METHODS, "ensemble"])
        require(self.method in (Config.method, *known), "method", f"{Config.method} or one of {known}", self.method)
        if self.epochs is not None:
            require_whole("epochs", self.epochs)
        require_whole("batch size", USUAL if self.batch_size is None else self.batch_size)
        require(self.folds == 0 or self.folds >= 2, "folds", "0, or at least 2", self.folds)
        require(abs(self.seed) < 2**63, "seed", "a whole number below 2^63", self.seed)
        for name, value in {"lr": self.lr, **self.options}.items():  # JSON, in which all is written down, has no others
            require(not isinstance(value, float) or math.isfinite(value), name, "a finite number", value)
        if self.lr is not None:
            require_positive("lr", self.lr)
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError):
            raise expected("device", "one that torch finds on this machine, such as cpu", self.device) from None


def decided(config: Config, preprocessing: Preprocessing, n: int) -> Config:
    """The configuration for N rows, with every question answered that needs no training."""
    outputs = preprocessing.target.outputs
    said = {**config.options, "hidden": config.hidden, "epochs": config.epochs, "lr": config.lr}
    said = {name: value for name, value in said.items() if value is not None}
    model = config.model or best_model(preprocessing, plain=not said and config.method == Config.method)
    if config.method == Config.method:
        meant = "ivon" if any(name in config.options for name in _OF_IVON) else "variational"
        config = replace(config, method=_METHODS.get(model, meant))
    if model == HEAD:
        check_head(preprocessing.target, config.method, said)
    if model == RESIDUAL and not isinstance(preprocessing.target, Amount):
        raise expected("model", "another than 'residual', which learns amounts", preprocessing.target.task)
    table = model in _TABLE
    if table and config.model is None and config.method == "variational" and n >= LONG:
        model, config = "mlp", replace(config, hidden=config.hidden or WIDE)
    found = asdict(config) | {"options": dict(config.options), "model": model}
    if config.method == "ivon":
        few = FEW_LABELS if isinstance(preprocessing.target, Classes) else FEW_AMOUNTS
        members = MEMBERS if table else 1  # each of which learns from its part of the rows
        found["options"].setdefault("prior", PRIOR * min(1.0, n / few) / members)
    if folds_follow(model, config.method):
        found["lr"] = usual_lr(model) if config.lr is None else config.lr
        if "prior" not in config.options:  # which has the same effect
            found["options"].setdefault("weight_decay", usual_decay(n))
    found["batch_size"] = config.batch_size or (usual_batch(n) if table else USUAL)
    if config.method == "dropout" and config.dropout is None:
        found["dropout"] = 0.1
    if config.track is None:
        size = n * outputs * (PICTURE if len(preprocessing.shape) == 3 else 1)
        found["track"] = config.method in _GAUSSIAN and size <= LARGEST
    elif config.track and config.method not in _GAUSSIAN:
        raise expected("track", f"one of the methods {_GAUSSIAN}", config.method)
    if config.method == "laplace" and model != HEAD:
        found["prediction"] = "linearised"
    if n < FEWEST_ROWS:
        found["folds"] = 0
    return Config(**found)


def usual_lr(model: str | None) -> float:
    """The learning rate of AdamW for a table."""
    return LR_OF_CORRECTIONS if model == RESIDUAL else LR


def folds_follow(model: str | None, method: str) -> bool:
    """Whether the folds learn as the run will: by AdamW, with its learning rate."""
    return model in (*_TABLE, "mlp") and method == "variational"
