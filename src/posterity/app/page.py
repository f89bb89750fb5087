"""What the page gets first: all columns, and a description of what else it can ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from typing import Any

import numpy as np
import pandas as pd

from posterity.app import decisions
from posterity.app.packing import pack
from posterity.app.source import Source

BESIDE = ("error", "leverage", "variance", "loo_nll")  # columns of a second run that are drawn
HIDDEN = ("category",)  # follows from the guides, which move in the page


def static() -> dict[str, bytes]:
    """The files of the page, by name; nothing else is ever read for a request."""
    folder = resources.files("posterity.app").joinpath("static")
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


@dataclass(frozen=True, eq=False)
class Page:
    """A source in the form that the page requests."""

    source: Source

    @cached_property
    def table(self) -> pd.DataFrame:
        """The numeric columns of the table, and those of a second run, matched by id."""
        table = self.source.table.drop(columns=list(HIDDEN), errors="ignore")
        table = table[[name for name in table if pd.api.types.is_numeric_dtype(table[name])]].reset_index(drop=True)
        if self.source.beside is None:
            return table
        other = self.source.beside.set_index("id")
        matched = other[[name for name in BESIDE if name in other]].reindex(table["id"]).reset_index(drop=True)
        return pd.concat([table, matched.add_prefix("beside.")], axis=1)

    def about(self, **more: Any) -> dict[str, Any]:
        """What the page can ask for."""
        s = self.source
        return {
            "title": s.title,
            "ranking": s.ranking if s.ranking in s.table else "error",
            "reliability": s.reliability,
            "kind": s.kind,
            "searchable": s.search is not None,
            "whatIf": s.what_if is not None,
            "measure": s.measure is not None,
            "neighbours": s.neighbours is not None,
            "influences": s.influences is not None,
            "test": 0 if s.test is None else len(s.test),
            "epochs": [] if self.history is None else [float(e) for e in self.history.epochs],
            "extents": None if self.history is None else self.history.extents,
            "curves": _series(s.curves),
            "beside": s.beside_title if s.beside is not None else "",
            "outcome": _series(s.outcome),
            "decisions": decisions.read(s.decisions, s.rows, s.classes),
            "keeps": s.decisions.name if s.decisions else "",
            "adapt": s.adapt,
            "names": list(s.names) or None,
            "testNames": list(s.test_names) or None,
            **more,
        }

    def columns(self, table: pd.DataFrame | None = None, **more: Any) -> bytes:
        """The first answer."""
        return pack(self.table if table is None else table, self.source.classes, self.about(**more))

    def test(self) -> bytes:
        """The test examples."""
        assert self.source.test is not None
        return pack(self.source.test, self.source.classes)

    @cached_property
    def history(self) -> History | None:
        """The memory at epochs, by row of the table."""
        if self.source.history is None or self.source.history.empty:
            return None
        return History.of(self.source.history, self.source.table["id"].to_numpy())


@dataclass(frozen=True, eq=False)
class History:
    """Error and leverage of every example at some epochs, each (epochs, examples)."""

    epochs: np.ndarray[Any, Any]
    error: np.ndarray[Any, Any]
    leverage: np.ndarray[Any, Any]

    @classmethod
    def of(cls, table: pd.DataFrame, ids: np.ndarray[Any, Any]) -> History:
        """From one row for each example and epoch."""
        wide = [table.pivot(index="epoch", columns="id", values=name) for name in ("error", "leverage")]
        error, leverage = (one.reindex(columns=ids).to_numpy(dtype=np.float64) for one in wide)
        return cls(wide[0].index.to_numpy(), error, leverage)

    @property
    def extents(self) -> dict[str, list[float]]:
        """Smallest and largest values over all epochs: one pair of axes for the whole film."""
        both = (("error", self.error), ("leverage", self.leverage))
        return {name: [float(np.nanmin(values)), float(np.nanmax(values))] for name, values in both}

    def at(self, index: int) -> bytes:
        """The columns of one epoch."""
        return pack(pd.DataFrame({"error": self.error[index], "leverage": self.leverage[index]}))

    def trails(self, rows: np.ndarray[Any, Any]) -> dict[str, Any]:
        """The ways of some examples over all epochs."""
        return {
            "rows": rows.tolist(),
            "error": [_plain(way) for way in self.error[:, rows].T],
            "leverage": [_plain(way) for way in self.leverage[:, rows].T],
        }


def exact(source: Source, example: int) -> dict[str, Any]:
    """All numbers of one example, unrounded."""
    row = source.table.iloc[source.row(example)]
    return {str(name): _number(value) for name, value in row.items()}


def jsonable(value: Any) -> Any:
    """Mappings and sequences with numbers that JSON has."""
    if isinstance(value, Mapping):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(v) for v in value]
    return _number(value)


def _series(table: pd.DataFrame | None) -> dict[str, list[float | None]] | None:
    if table is None or table.empty:
        return None
    numbers = table.select_dtypes("number")
    return {str(name): _plain(numbers[name].to_numpy(dtype=np.float64, na_value=np.nan)) for name in numbers}


def _plain(values: np.ndarray[Any, Any]) -> list[float | None]:
    return [float(v) if np.isfinite(v) else None for v in values]


def _number(value: Any) -> Any:
    if value is None or value is pd.NA:
        return None
    if isinstance(value, (np.generic,)):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
