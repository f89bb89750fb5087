"""Decisions about examples as a CSV file: id, decision (keep, drop or relabel) and the new label."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from posterity.cells import escaped
from posterity.errors import RefusedFile, require
from posterity.files import write_bytes
from posterity.runs.decisions import DECISIONS, RowDecisions

COLUMNS = ("id", "decision", "label")

LONGEST = 1000  # characters of a label
CLEAR = "clear"  # takes a decision back

Decision = dict[str, Any]


def checked(
    given: Any, known: Mapping[int, int], words: Sequence[str] = DECISIONS, classes: Sequence[str] = ()
) -> list[Decision]:
    """Decisions as they may be written: known ids, each once, and a label exactly where one is needed.

    A label is a class of the map, or a line of text that could be one.

    Examples:
        >>> checked([{"id": 3, "decision": "relabel", "label": "cat"}], {3: 0})
        [{'id': 3, 'decision': 'relabel', 'label': 'cat'}]
    """
    require(isinstance(given, list), "decisions", "a list", given)
    found: dict[int, Decision] = {}
    for one in given:
        require(isinstance(one, dict) and type(one.get("id")) is int, "decision", "an object with an integer id", one)
        number, what, label = one["id"], one.get("decision"), one.get("label") or ""
        require(number in known and number not in found, "id", "an id of the table, once", number)
        require(what in words, f"decision about {number}", f"one of {words}", what)
        require(isinstance(label, str), f"label of {number}", "a text", label)
        label = label.strip()  # as it is read from the file
        require((what == "relabel") == bool(label), f"label of {number}", "one for relabel, none otherwise", label[:40])
        fine = label in classes or (len(label) <= LONGEST and (label.isprintable() or not label))
        require(fine, f"label of {number}", f"one line of at most {LONGEST} characters", label[:40])
        found[number] = {"id": number, "decision": what, "label": label}
    return list(found.values())


def updated(
    before: Iterable[Decision], changes: Any, known: Mapping[int, int], classes: Sequence[str] = ()
) -> list[Decision]:
    """The decisions after some changes, the last one for each example, in the order of the table.

    Examples:
        >>> kept = checked([{"id": 3, "decision": "drop"}, {"id": 5, "decision": "keep"}], {3: 0, 5: 1})
        >>> updated(kept, [{"id": 3, "decision": "clear"}], {3: 0, 5: 1})
        [{'id': 5, 'decision': 'keep', 'label': ''}]
    """
    found = {one["id"]: one for one in before}
    found |= {one["id"]: one for one in checked(changes, known, (*DECISIONS, CLEAR), classes)}
    return sorted((one for one in found.values() if one["decision"] != CLEAR), key=lambda one: known[one["id"]])


def to_csv(decisions: Iterable[Decision]) -> str:
    """The file that `posterity adapt --decisions` takes."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({**one, "label": escaped(one["label"])} for one in decisions)
    return text.getvalue()


def write(path: Path, decisions: Iterable[Decision]) -> None:
    """Write the file atomically."""
    write_bytes(path, to_csv(decisions).encode())


def read(path: Path | None, known: Mapping[int, int], classes: Sequence[str] = ()) -> list[Decision]:
    """What an earlier session decided; nothing where there is no file yet."""
    if path is None or not path.exists():
        return []
    found = RowDecisions.read(path)
    rows = [{"id": i, "decision": "keep"} for i in found.kept] + [{"id": i, "decision": "drop"} for i in found.dropped]
    rows += [{"id": i, "decision": "relabel", "label": _meant(y, classes)} for i, y in found.relabelled.items()]
    foreign = [row["id"] for row in rows if row["id"] not in known]
    if foreign:
        fix = "if it belongs to an earlier training, move it away"
        raise RefusedFile(f"{path}: expected decisions about examples of the map, got one about {foreign[0]}; {fix}")
    return checked(rows, known, classes=classes)


def _meant(label: str, classes: Sequence[str]) -> str:
    """The class of a label: pandas writes 1.0 for a class called 1, beside rows without a new label."""
    plain = label.removesuffix(".0")
    return plain if plain in classes and label not in classes else label
