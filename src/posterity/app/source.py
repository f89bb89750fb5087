"""What the application shows: tables and callables, never a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from posterity.adaptation import Measured
from posterity.app.jobs import Progress
from posterity.errors import InvalidInput, expected, require

Kind = Literal["image", "text", "row", ""]
Ranked = Sequence[tuple[int, float]]  # ids with a number each, best first
LARGEST = 2**53
REQUIRED = ("id", "label", "prediction", "error", "leverage")


@dataclass(frozen=True)
class Preview:
    """One example for the eye: the bytes of a PNG, a text, or a row of a table.

    Args:
        kind: Which of the three.
        content: PNG bytes, the text, or a mapping from column to {"value", "z": standard deviations from the mean}.
    """

    kind: Kind
    content: bytes | str | Mapping[str, Any]


@dataclass(frozen=True)
class Estimate:
    """What a change of the training data would do, estimated.

    Args:
        examples: Number of examples it was measured on.
        measured_on: What they are ("test examples").
        loss_before: Their mean loss.
        loss_after: The same after the change.
        accuracy_before: Share of right predictions; None where there are no classes.
        accuracy_after: The same after the change.
        moved: The examples whose predictions move most, each {"id", "label", "before", "after", "loss_change"}.
        changed: How many predictions become another class; None where there are no classes.
        warning: Why sizes should be taken with care; empty if they need not be.
        direction: Whether at least the direction can be trusted.
    """

    examples: int
    measured_on: str
    loss_before: float
    loss_after: float
    accuracy_before: float | None = None
    accuracy_after: float | None = None
    moved: Sequence[Mapping[str, Any]] = ()
    changed: int | None = None
    warning: str = ""
    direction: bool = True


@dataclass(frozen=True)
class MeasuredChange(Measured):
    """What a change of the training data does, measured by training with and without it.

    Args:
        measured_on: What the examples are ("test examples"); the rest is as `measure` gives it.
    """

    measured_on: str


WhatIf = Callable[[Sequence[int], Mapping[int, Any]], Estimate]  # ids to remove, and new labels by id
Measure = Callable[[Sequence[int], Mapping[int, Any], Progress], MeasuredChange]


@dataclass(frozen=True, eq=False, repr=False)
class Source:
    """All that the browser can ask for.

    Args:
        table: The table of a memory map: id, label, prediction, error, leverage and any other numbers.
        title: Heading of the page.
        classes: Names of the classes, by label; empty where labels are numbers.
        ranking: The column that finds wrong labels best.
        reliability: Why estimates should be taken with care; empty if they need not be.
        kind: What a preview is.
        preview: The preview of a training example, by id.
        search: Which rows of the table match a text.
        what_if: The estimate for removing rows with some ids and relabelling others.
        measure: The measured effect of the same, with a function to tell about progress.
        effects: First-order changes of the mean test loss, columns id, remove and relabel (to the suspected label).
        neighbours: The k nearest training examples of one, by kernel.
        test: Test examples: id, label, prediction and loss.
        test_preview: The preview of a test example, by id.
        influences: The k training examples that most move a test prediction: change of its loss without each.
        history: The memory at epochs of training: id, epoch, error, leverage.
        curves: Numbers by epoch: epoch, and any of train, test and leave_one_out loss.
        beside: The table of a second run, matched by id.
        beside_title: Its name.
        outcome: Predicted against actual change of test examples after adaptation: id, predicted, actual.
        decisions: CSV file in which marks are kept; None keeps them in the page.
        adapt: The command that applies these decisions.
        names: What the data call each training example, in the order of the table: the files of pictures.
        test_names: The same for the test examples.
    """

    table: pd.DataFrame
    title: str = "Memory map"
    classes: tuple[str, ...] = ()
    ranking: str = "loo_nll"
    reliability: str = ""
    kind: Kind = ""
    preview: Callable[[int], Preview] | None = None
    search: Callable[[str], np.ndarray[Any, Any]] | None = None
    what_if: WhatIf | None = None
    measure: Measure | None = None
    effects: Callable[[], pd.DataFrame] | None = None
    neighbours: Callable[[int, int], Ranked] | None = None
    test: pd.DataFrame | None = None
    test_preview: Callable[[int], Preview] | None = None
    influences: Callable[[int, int], Ranked] | None = None
    history: pd.DataFrame | None = None
    curves: pd.DataFrame | None = None
    beside: pd.DataFrame | None = None
    beside_title: str = ""
    outcome: pd.DataFrame | None = None
    decisions: Path | None = None
    adapt: str = ""
    names: Sequence[str] = ()
    test_names: Sequence[str] = ()
    rows: Mapping[int, int] = field(init=False)

    def __post_init__(self) -> None:
        _columns("table", self.table, REQUIRED)
        require(len(self.table) > 0, "table", "at least one example", "none")
        _columns("test", self.test, ("id", "label", "prediction", "loss"))
        _columns("history", self.history, ("id", "epoch", "error", "leverage"))
        _columns("curves", self.curves, ("epoch",))
        _columns("beside", self.beside, REQUIRED)
        _columns("outcome", self.outcome, ("id", "predicted", "actual"))
        require(self.decisions is None or isinstance(self.decisions, Path), "decisions", "a Path", self.decisions)
        ids = self.table["id"].to_numpy()
        whole = ids.dtype.kind in "iu" and bool((np.abs(ids.astype(np.float64)) < LARGEST).all())
        require(whole, "ids of the table", "whole numbers below 2**53, which a browser can hold", ids[:3].tolist())
        require(len(np.unique(ids)) == len(ids), "ids of the table", "each only once", "repeated ones")
        object.__setattr__(self, "rows", {int(i): row for row, i in enumerate(ids)})

    def row(self, example: int) -> int:
        """The position of an example in the table."""
        if example not in self.rows:
            raise expected("id", "an id of the table", example)
        return self.rows[example]

    def __repr__(self) -> str:
        return f"Source({self.title!r}, {len(self.table)} examples)"


def _columns(what: str, table: pd.DataFrame | None, wanted: Sequence[str]) -> None:
    if table is None:
        return
    missing = [name for name in wanted if name not in table]
    if missing:
        raise InvalidInput(
            f"{what}: expected the columns {', '.join(wanted)}, got a table without {', '.join(missing)}"
        )
