"""The progress bar of a training run: loss, accuracy, σ and the time left, on a terminal only."""

from __future__ import annotations

import sys
import time
from typing import Any

from posterity.learning.callbacks import Callback, Moment

_SHOWN = {"loss": "loss", "accuracy": "accuracy", "rmse": "rmse", "validation_loss": "validation", "sigma": "σ"}
_PAUSE = 0.1  # seconds between two looks at the metrics: each one waits for the device


class ProgressBar(Callback):
    """A bar over all steps, gone when training is."""

    def __init__(self) -> None:
        self.bar: Any = None
        self.task: Any = None
        self.looked = 0.0
        self.latest: dict[str, float] = {}

    def start(self, moment: Moment) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=Console(file=sys.stderr), transient=True)
        self.bar.start()
        self.task = self.bar.add_task("training", total=moment.steps, completed=moment.step)

    def step(self, moment: Moment) -> None:
        if time.monotonic() - self.looked > _PAUSE:
            self._show(moment)

    def epoch(self, moment: Moment) -> None:
        self._show(moment)

    def end(self, moment: Moment) -> None:
        self.bar.stop()

    def _show(self, moment: Moment) -> None:
        self.latest |= moment.metrics()
        shown = "  ".join(f"{word} {self.latest[name]:.4g}" for name, word in _SHOWN.items() if name in self.latest)
        epoch = f"epoch {min(moment.epoch + 1, moment.epochs)}/{moment.epochs}"
        self.bar.update(self.task, completed=moment.step, description=f"{epoch}  {shown}")
        self.looked = time.monotonic()
