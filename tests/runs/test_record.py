"""The record of a run: what goes into `run.json` comes back, also from runs that say less."""

from __future__ import annotations

import json

from posterity.runs.record import RowCounts, RunRecord

RECORD = RunRecord(
    config={"method": "ivon", "hidden": [8]},
    data={"target": "y"},
    preprocessing={},
    status="interrupted",
    rows=RowCounts(120, 30),
    metrics={"accuracy": 0.9},
    steps=40,
    notes=["few rows"],
)


def test_a_record_comes_back():
    stored = json.loads(json.dumps(RECORD.content() | {"versions": {"posterity": "0"}, "tables": {}}))
    assert RunRecord.of(stored) == RECORD
    assert stored["rows"] == {"train": 120, "test": 30}
    assert "parent" not in stored
    assert "checkpoint" not in stored


def test_a_run_that_says_less_is_read():
    stored = {name: RECORD.content()[name] for name in ("config", "data", "preprocessing", "status", "rows", "metrics")}
    found = RunRecord.of(stored)
    assert (found.steps, found.baseline, found.notes, found.adaptation) == (0, {}, [], None)
