"""A run with other data, without training it again: rows added, dropped or relabelled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import torch

from posterity.adaptation import adapt
from posterity.adaptation.report import Report
from posterity.errors import InvalidInput, expected
from posterity.runs._folder import RunFolder
from posterity.runs.data import Source
from posterity.runs.decisions import Decisions
from posterity.runs.fitting import evaluated
from posterity.runs.preprocessing import Examples, Preprocessing
from posterity.runs.targets import Classes

REMEMBERED = 2000  # training rows that stand for the past, unless said otherwise


def adapt_run(
    run: RunFolder,
    out: Path,
    *,
    add: Path | None = None,
    decisions: Decisions | None = None,
    memory: int | None = None,
    overwrite: bool = False,
    **settings: Any,
) -> tuple[RunFolder, Report, list[str]]:
    """Adapt a run and write the result as another.

    Args:
        run: The run; it stays as it is.
        out: Folder of the new run.
        add: A file of new rows.
        decisions: What becomes of old ones.
        memory: How many training rows stand for the past.
        overwrite: Replace a run that is already in `out`.
        **settings: What `posterity.adapt` takes beyond that (method, epochs, lr, seed).

    Returns:
        The new run, the report of the adaptation, and notes about unusual rows.
    """
    if out.resolve() == run.folder.resolve():
        raise expected("out", "another folder than that of the run", str(out))
    notes: list[str] = []
    train, data, preprocessing = run.data("train"), run.dataset, run.preprocessing
    added: Examples | None = None
    if add is not None:
        first = 1 + int(max([train.ids.max(), *(run.select("test").ids.tolist() if data.test else [0])]))
        source = Source.of(add, out, inputs=data.source.inputs, size=data.source.size)
        before = len(data.select(run.folder, "train").ids)
        data = data.plus(source, first)
        rows, ids = data.select(run.folder, "train", notes)
        preprocessing = preprocessing.extended(rows)
        if len(ids) == before:
            raise InvalidInput(f"{add}: expected rows with a {data.target}, got none")
        fresh = rows.take(torch.arange(before, len(ids)).numpy())
        added = preprocessing.examples(fresh, ids[before:], notes)
    if decisions is not None:
        _known(train, decisions)
        data = data.changed(list(decisions.dropped), decisions.relabelled)
    relabel, preprocessing = _targets(decisions, preprocessing)
    names = _grown(run.preprocessing, preprocessing)
    result = adapt(
        run.model(),
        run.posterior,
        data=train,
        add=added,
        remove=decisions.dropped if decisions is not None and decisions.dropped else None,
        relabel=relabel or None,
        classes=names,
        memory=min(len(train.ids), REMEMBERED if memory is None else memory),
        **settings,
    )
    report = result.report
    # The new covariance is that of the curvature at the new mean: too wide to draw from, right for the tangent.
    config = {**run.config, "prediction": "linearised"}
    content = {
        **run.content,
        "config": config,
        "data": data.settings(),
        "preprocessing": preprocessing.settings(),
        "status": "finished",
        "parent": {"path": str(run.folder.absolute()), "metrics": run.metrics},
        "adaptation": _account(report),
        "notes": notes,
    }
    content.pop("memory", None)
    test = None
    if data.test:
        rows, ids = data.select(run.folder, "test")
        test = preprocessing.examples(rows, ids, notes) if len(rows) else None
    content["rows"] = {"train": result.posterior.n, "test": 0 if test is None else len(test.ids)}
    tables, content["metrics"] = evaluated(result.model, result.posterior, config, preprocessing, test)
    written = RunFolder.create(
        out,
        model=result.model,
        posterior=result.posterior,
        content=content,
        history=run.history,
        tables=tables,
        overwrite=overwrite,
    )
    return written, report, notes


def _known(train: Examples, decisions: Decisions) -> None:
    there = set(train.ids.tolist())
    for i in (*decisions.dropped, *decisions.relabelled):
        if i not in there:
            raise expected("decisions", "ids of training rows (`posterity map` lists them)", i)
    if not decisions.dropped and not decisions.relabelled:
        raise InvalidInput("decisions: expected at least one row to drop or relabel, got only rows to keep")


def _targets(decisions: Decisions | None, preprocessing: Preprocessing) -> tuple[dict[int, Any], Preprocessing]:
    """New targets by id, as the model takes them; classes that only they have are new ones."""
    if decisions is None or not decisions.relabelled:
        return {}, preprocessing
    labels = pd.Series(list(decisions.relabelled.values()))
    encoded = preprocessing.target.encode(labels)
    return dict(zip(decisions.relabelled, encoded)), preprocessing


def _grown(before: Preprocessing, after: Preprocessing) -> tuple[str, ...] | None:
    old, new = before.target, after.target
    if isinstance(old, Classes) and isinstance(new, Classes) and old.names != new.names:
        return new.names
    return None


def _account(report: Report) -> dict[str, Any]:
    return {
        "method": report.method,
        "exact": report.exact,
        "steps": report.steps,
        "seconds": report.seconds,
        "passes": report.passes,
        "residual": report.residual,
        "gradient": report.gradient,
        "bound": report.bound,
        "memory": list(report.memory),
        "added": len(report.added),
        "removed": len(report.removed),
        "table": {
            str(k): {str(c): float(v) for c, v in row.items() if v == v}
            for k, row in report.table.to_dict("index").items()
        },
    }
