"""`RunRecord`: the content of `run.json`, except the list of files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, NamedTuple


class RowCounts(NamedTuple):
    """How many rows a run was trained on, and how many were held out."""

    train: int
    test: int


@dataclass(frozen=True)
class RunRecord:
    """How a run was made and how well it performs, as stored.

    Args:
        config: Model, method, seeds, and every setting of the training.
        data: Which rows, as `Data.settings` gives them.
        preprocessing: What is done to them, as `Preprocessing.settings` gives it.
        status: "finished", or "interrupted" by Ctrl-C.
        rows: Rows of training and held-out rows.
        metrics: Figures on the held-out rows.
        steps: Optimizer steps taken.
        seconds: Seconds of training.
        baseline: The same figures of simple baselines, for comparison.
        notes: What is unusual about the data.
        checkpoint: Where the weights came from, if not from training.
        parent: Folder and figures of the run that this one was adapted from.
        adaptation: What was changed, and how.
        widths: How much wider than a Gaussian's the intervals of amounts are, see `intervals.widths`.
    """

    config: dict[str, Any]
    data: dict[str, Any]
    preprocessing: dict[str, Any]
    status: Literal["finished", "interrupted"]
    rows: RowCounts
    metrics: Mapping[str, Any]
    steps: int = 0
    seconds: float = 0.0
    baseline: Mapping[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    checkpoint: str | None = None
    parent: Mapping[str, Any] | None = None
    adaptation: Mapping[str, Any] | None = None
    widths: list[float] | None = None

    def content(self) -> dict[str, Any]:
        """The record as JSON; what does not apply is left out."""
        found = {name: value for name, value in asdict(self).items() if value is not None}
        return found | {"rows": self.rows._asdict()}

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> RunRecord:
        """The record in the content of a run; the other entries belong to its files."""
        known = {f.name: content[f.name] for f in fields(cls) if f.name in content}
        return cls(**known | {"rows": RowCounts(**content["rows"])})
