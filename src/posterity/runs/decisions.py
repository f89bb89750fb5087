"""Decisions about training rows: one file lists which to keep, to drop and to relabel."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from posterity.cells import unescaped
from posterity.errors import InvalidInput, RefusedFile, expected
from posterity.memory._memory_map import LIKELY
from posterity.runs.columns import as_text
from posterity.runs.delimited import read_delimited
from posterity.runs.readers import read_rows

DECISIONS = ("keep", "drop", "relabel")
_ID = re.compile(r"-?[0-9]{1,19}")


@dataclass(frozen=True)
class RowDecisions:
    """What was decided.

    Args:
        kept: Ids of rows that were looked at and are kept.
        dropped: Ids of rows that go.
        relabelled: New targets by id, as text.
    """

    kept: tuple[int, ...]
    dropped: tuple[int, ...]
    relabelled: dict[int, str]

    @classmethod
    def read(cls, path: Path) -> RowDecisions:
        """Read a file with the columns id, decision ("keep", "drop" or "relabel") and label (the new one)."""
        table = _as_written(path)
        for name in ("id", "decision"):
            if name not in table:
                raise expected(f"{path}", "the columns id, decision and label", list(table))
        labels = _labels(table["label"]) if "label" in table else [""] * len(table)
        found: dict[int, tuple[str, str]] = {}
        for line, (i, decision, label) in enumerate(zip(as_text(table["id"]), as_text(table["decision"]), labels), 2):
            if not _ID.fullmatch(i) or abs(int(i)) >= 2**63:
                raise expected(f"{path}, line {line}", "a whole number below 2^63 as id", i[:40])
            if decision.lower() not in DECISIONS:
                raise expected(f"{path}, line {line}", f"a decision among {DECISIONS}", decision)
            if decision.lower() == "relabel" and not label:
                raise InvalidInput(f"{path}, line {line}: expected the new label of row {i}, got none")
            if found.get(int(i), (decision.lower(), label)) != (decision.lower(), label):
                raise InvalidInput(f"{path}, line {line}: expected one decision about row {i}, got two")
            found[int(i)] = (decision.lower(), label)
        return cls(
            tuple(i for i, (what, _) in found.items() if what == "keep"),
            tuple(i for i, (what, _) in found.items() if what == "drop"),
            {i: label for i, (what, label) in found.items() if what == "relabel"},
        )


def _as_written(path: Path) -> pd.DataFrame:
    """The table with every word in it: a class may be called "None", and all decisions may have been withdrawn."""
    if path.suffix.lower() != ".csv" or not path.is_file():
        return read_rows(path).table
    try:
        return read_delimited(path, missing=(), show=False)
    except InvalidInput:
        raise
    except ValueError as why:
        raise RefusedFile(f"{path}: expected a readable csv file, got {why}") from why


def _labels(values: pd.Series[Any]) -> list[str]:
    """Labels in written form: a class may be called "1.0"."""
    return [unescaped(v.strip()) if isinstance(v, str) else text for v, text in zip(values, as_text(values))]


def proposal(suspects: pd.DataFrame) -> pd.DataFrame:
    """A file of decisions to start from: relabel where one other label is likely, drop other suspects, keep the rest.

    Amounts are all kept: no probability is known that one is wrong.

    Args:
        suspects: Rows of a memory map. The given label and further columns follow the three that are read.
    """
    other: Any = suspects.get("suspected_label", pd.Series(None, index=suspects.index, dtype=object))
    decision = other.notna().map({True: "drop", False: "keep"})
    if "suggestion_confidence" in suspects:  # a probability, where the run was cross-validated
        decision[other.notna() & (suspects["suggestion_confidence"] > LIKELY)] = "relabel"
    given = suspects["label"]
    if pd.api.types.is_float_dtype(given):  # standardised in single precision and back: seven digits are the data's
        given = given.map(lambda value: float(f"{value:.7g}"))
    start = pd.DataFrame({"id": suspects["id"], "decision": decision, "label": other, "given": given})
    rest = suspects.drop(columns=[*start, "suspected_label"], errors="ignore")  # data may have such columns, too
    return pd.concat([start, rest], axis=1)
