"""Callbacks: what watches a training run, and the adapters to the usual loggers."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from posterity.errors import MissingExtra
from posterity.posterior import Posterior


@dataclass(frozen=True)
class Moment:
    """The state of training when a callback is called, always between two steps.

    Args:
        step: Steps done, of `steps`.
        steps: Steps in all.
        epoch: Epochs done, of `epochs`.
        epochs: Epochs in all.
        model: The model, at the posterior mean.
        optimizer: The optimizer.
        metrics: What is known now: the running means of the epoch after a step, the row of the history after
            an epoch. Reading it waits for the device.
        posterior: A function that builds the posterior of this moment.
        batch: Examples of a step, on average.
    """

    step: int
    steps: int
    epoch: int
    epochs: int
    model: nn.Module
    optimizer: Optimizer
    metrics: Callable[[], Mapping[str, float]]
    posterior: Callable[[], Posterior]
    batch: float


class Callback:
    """Does nothing, at four moments; override those you need. Raise KeyboardInterrupt to stop cleanly."""

    def start(self, moment: Moment) -> None:
        """Before the first step (of this process, when a run is resumed)."""

    def step(self, moment: Moment) -> None:
        """After each step."""

    def epoch(self, moment: Moment) -> None:
        """After each epoch and its validation."""

    def end(self, moment: Moment) -> None:
        """After the last step, or when training was stopped."""


class JSONLines(Callback):
    """Append the row of each epoch to a file, one JSON object a line."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def epoch(self, moment: Moment) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(dict(moment.metrics())) + "\n")


class TensorBoard(Callback):
    """Write the row of each epoch to TensorBoard (needs the package tensorboard)."""

    def __init__(self, folder: str | Path) -> None:
        self.writer = _package("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(folder))

    def epoch(self, moment: Moment) -> None:
        for name, value in moment.metrics().items():
            self.writer.add_scalar(name, value, moment.step)

    def end(self, moment: Moment) -> None:
        self.writer.flush()


class WandB(Callback):
    """Send the row of each epoch to Weights & Biases (needs the package wandb), to the run given or the current one."""

    def __init__(self, run: Any = None) -> None:
        if run is None:
            wandb = _package("wandb", "wandb")
            run = wandb.run or wandb.init()
        self.run = run

    def epoch(self, moment: Moment) -> None:
        self.run.log(dict(moment.metrics()), step=moment.step)


def _package(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(f"callback: expected the package {package}; pip install {package}") from error
