"""Progress of a training run: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from posterity.learning.callbacks import Callback, Moment
from posterity.progress import Lines, Rate

_SHOWN = {"loss": "loss", "accuracy": "accuracy", "rmse": "rmse", "validation_loss": "validation", "sigma": "σ"}
_PAUSE = 0.1  # seconds between two looks at the metrics: each one waits for the device


class ProgressBar(Callback):
    """A bar over all steps, gone when training is. What does not fit the screen is cut off behind the time left."""

    def __init__(self) -> None:
        self.bar: Any = None
        self.task: Any = None
        self.looked = 0.0
        self.latest: dict[str, float] = {}
        self.rate = Rate()

    def start(self, moment: Moment) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Column

        figures = Column(no_wrap=True, overflow="ellipsis", ratio=1)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}", table_column=figures),
        )
        self.bar = Progress(*columns, console=Console(file=sys.stderr), transient=True, expand=True)
        self.rate = Rate(moment.step * moment.batch)
        self.bar.start()
        self.task = self.bar.add_task("training", total=moment.steps, completed=moment.step, figures="")

    def step(self, moment: Moment) -> None:
        if time.monotonic() - self.looked > _PAUSE:
            self._show(moment)

    def epoch(self, moment: Moment) -> None:
        if time.monotonic() - self.looked > _PAUSE or moment.step == moment.steps:
            self._show(moment)

    def end(self, moment: Moment) -> None:
        self.bar.stop()

    def _show(self, moment: Moment) -> None:
        self.latest |= moment.metrics()
        self.rate.done = moment.step * moment.batch
        first, *others = _figures(self.latest)
        figures = "  ".join([first, self.rate.words(), *others])  # the last are cut off
        self.bar.update(self.task, completed=moment.step, description=_epoch(moment), figures=figures)
        self.looked = time.monotonic()


class ProgressLines(Callback):
    """A line every few seconds, for logs and pipes."""

    def __init__(self) -> None:
        self.lines: Lines | None = None
        self.rate = Rate()

    def start(self, moment: Moment) -> None:
        self.lines, self.rate = Lines("training", moment.steps), Rate(moment.step * moment.batch)

    def step(self, moment: Moment) -> None:
        if self.lines is not None:
            self.lines.tell(moment.step, lambda: self._words(moment))

    def _words(self, moment: Moment) -> str:
        self.rate.done = moment.step * moment.batch
        return ", ".join([_epoch(moment), *_figures(moment.metrics()), self.rate.words()])


def _epoch(moment: Moment) -> str:
    return f"epoch {min(moment.epoch + 1, moment.epochs)}/{moment.epochs}"


def _figures(found: Mapping[str, float]) -> list[str]:
    return [f"{word} {found[name]:.4g}" for name, word in _SHOWN.items() if name in found]
