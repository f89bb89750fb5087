"""Decisions about examples as a CSV file: id, decision (keep, drop or relabel) and the new label."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from posterity.errors import RefusedFile, expected, require
from posterity.files import write_bytes

COLUMNS = ("id", "decision", "label")
DECISIONS = ("keep", "drop", "relabel")
LIMIT = 64 * 2**20  # bytes

Decision = dict[str, Any]


def checked(given: Any, known: Mapping[int, int]) -> list[Decision]:
    """Decisions as they may be written: known ids, each once, and a label exactly where one is needed.

    Examples:
        >>> checked([{"id": 3, "decision": "relabel", "label": "cat"}], {3: 0})
        [{'id': 3, 'decision': 'relabel', 'label': 'cat'}]
    """
    require(isinstance(given, list), "decisions", "a list", given)
    found: dict[int, Decision] = {}
    for one in given:
        require(isinstance(one, dict) and type(one.get("id")) is int, "decision", "an object with an integer id", one)
        number, what, label = one["id"], one.get("decision"), str(one.get("label") or "")
        require(number in known and number not in found, "id", "an id of the table, once", number)
        require(what in DECISIONS, f"decision about {number}", f"one of {DECISIONS}", what)
        require((what == "relabel") == bool(label), f"label of {number}", "one for relabel, none otherwise", label)
        found[number] = {"id": number, "decision": what, "label": label}
    return list(found.values())


def to_csv(decisions: Iterable[Decision]) -> str:
    """The file that `posterity adapt --decisions` takes."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(decisions)
    return text.getvalue()


def write(path: Path, decisions: Iterable[Decision]) -> None:
    """Write the file atomically."""
    write_bytes(path, to_csv(decisions).encode())


def read(path: Path | None, known: Mapping[int, int]) -> list[Decision]:
    """What an earlier session decided; nothing where there is no file yet."""
    if path is None or not path.exists():
        return []
    if path.stat().st_size > LIMIT:
        raise RefusedFile(f"{path}: expected at most {LIMIT} bytes of decisions, got {path.stat().st_size}")
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if not set(COLUMNS) <= set(reader.fieldnames or ()):
            raise RefusedFile(f"{path}: expected the columns {', '.join(COLUMNS)}, got {reader.fieldnames}")
        rows = [{name: row[name] for name in COLUMNS} for row in reader]
    for row in rows:
        if not (row["id"] or "").lstrip("-").isdigit():
            raise expected(f"id in {path}", "an integer", row["id"])
    return checked([{**row, "id": int(row["id"])} for row in rows], known)
