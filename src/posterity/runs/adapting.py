"""A run with other data, without training it again: rows added, dropped or relabelled."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from posterity.adaptation import Adaptation, adapt
from posterity.adaptation.report import Report
from posterity.cells import counted
from posterity.errors import InvalidInput, expected
from posterity.features.cache import FOLDER as FEATURES
from posterity.features.cache import Cache
from posterity.prediction import predict
from posterity.runs._folder import RunFolder
from posterity.runs.data import Data, DataSource, refuse_hiding
from posterity.runs.decisions import RowDecisions
from posterity.runs.encoding import ADAPTER
from posterity.runs.fitting import give_up, refuse_occupied
from posterity.runs.planning import held_out
from posterity.runs.predicting import evaluated
from posterity.runs.preprocessing import Examples, Preprocessing
from posterity.runs.record import RowCounts
from posterity.runs.targets import Amount, Classes
from posterity.startup import put_off_compiler

MUCH = 0.25  # share of the squared error of all rows from which on intervals are visibly too wide
_TINY = 1e-300


def adapt_run(
    run: RunFolder,
    out: Path,
    *,
    add: Path | None = None,
    decisions: RowDecisions | None = None,
    embeddings: Path | None = None,
    memory: int | None = None,
    overwrite: bool = False,
    **settings: Any,
) -> tuple[RunFolder, Report, list[str]]:
    """Adapt a run and write the result as another.

    Args:
        run: The run; it is not changed.
        out: Folder of the new run.
        add: A file of new rows.
        embeddings: A file with a vector for each of them, where the run was trained with vectors.
        decisions: What becomes of old ones.
        memory: How many training rows are remembered; without a number as many as `posterity.adapt` chooses.
        overwrite: Replace a run that is already in `out`.
        **settings: What `posterity.adapt` takes beyond that (forget, method, epochs, lr, seed).

    Returns:
        The new run, the report of the adaptation, and notes about unusual rows.
    """
    put_off_compiler()
    if out.resolve() == run.folder.resolve():
        raise expected("out", "another folder than that of the run", str(out))
    refuse_occupied(out, overwrite)
    for path in (Path(run.dataset.source.path), add):
        if path is not None:
            refuse_hiding(path, out)
    notes: list[str] = []
    train = run.data("train")
    data, preprocessing, added = _with_added(run, add, embeddings, notes)
    if decisions is not None:
        check_known(run, train, decisions)
        data = data.changed(list(decisions.dropped), decisions.relabelled)
    if run.forgets:
        _check_remembered(run, decisions, memory)
        notes.append("a part of the old rows was forgotten before: the posterior and a memory represent them")
    notes.extend(_new_classes(run, preprocessing, added))
    result = adapt(
        run.model(),
        run.posterior,
        data=None if run.forgets else train,  # rows that count for less are in the posterior and its memory alone
        add=added,
        remove=decisions.dropped if decisions is not None and decisions.dropped else None,
        relabel=targets_of(decisions, preprocessing) or None,
        classes=_grown(run.preprocessing, preprocessing),
        memory=None if memory is None else min(len(train.ids), memory),
        **settings,
    )
    notes.extend(result.report.notes)
    notes.extend(_kept_noise(run, train, decisions))
    return _written(run, out, result, data, preprocessing, notes, overwrite), result.report, notes


def _new_classes(run: RunFolder, after: Preprocessing, added: Examples | None) -> list[str]:
    """A note on each class that only added rows have: it may be a spelling of an old one."""
    names = _grown(run.preprocessing, after)
    if names is None or added is None:
        return []
    old, target = run.class_names or (), after.target.name
    counts = torch.bincount(added.targets, minlength=len(names)).tolist()
    return [
        f"{target}: {names[k]!r} is a new class, of {counted(counts[k], 'added row')}"
        for k in range(len(old), len(names))
    ]


def _kept_noise(run: RunFolder, train: Examples, decisions: RowDecisions | None) -> list[str]:
    """A note where corrected amounts made much of the noise: an adaptation keeps its estimate, a new fit has none."""
    if decisions is None or not isinstance(run.preprocessing.target, Amount):
        return []
    mean = predict(run.model(), run.posterior, train.inputs, samples=0).mean.cpu().double()
    errors = (mean - train.targets.double()).square().flatten()
    corrected = torch.isin(train.ids, torch.tensor([*decisions.dropped, *decisions.relabelled]))
    share = (errors[corrected].sum() / errors.sum().clamp_min(_TINY)).item()
    if share < MUCH:
        return []
    return [
        f"the corrected rows made {share:.0%} of the squared error, and the intervals still assume it: correct the "
        "file and train again with `posterity fit`"
    ]


def _with_added(
    run: RunFolder, add: Path | None, embeddings: Path | None, notes: list[str]
) -> tuple[Data, Preprocessing, Examples | None]:
    """Data and preprocessing with the rows of another file, and those rows; new classes are among them or not."""
    data = run.dataset
    if add is None:
        return data, run.preprocessing, None
    if any(column.width for column in run.preprocessing.columns) and add.exists():
        run.preprocessing.check_columns(run.read(add, embeddings))  # joined to the old rows, they would be empty cells
    before = data.select(run.folder, "train").ids
    source = DataSource.of(add, run.folder, inputs=data.source.inputs, size=data.source.size, embeddings=embeddings)
    if source.sha256 in data.hashes():
        raise InvalidInput(f"{add}: expected new rows, got a file that the run has learnt from or is tested with")
    data = data.plus(source, run.folder)
    rows, ids = data.select(run.folder, "train", notes)
    if len(ids) == len(before):
        raise InvalidInput(f"{add}: expected rows with a value of {data.target}, got none")
    preprocessing = run.preprocessing.extended(rows)
    fresh = rows.take(np.arange(len(before), len(ids)))
    return data, preprocessing, preprocessing.examples(fresh, ids[len(before) :], notes)


def _written(
    run: RunFolder,
    out: Path,
    result: Adaptation,
    data: Data,
    preprocessing: Preprocessing,
    notes: list[str],
    overwrite: bool,
) -> RunFolder:
    """The adapted run: the old record with the changes."""
    # The new covariance comes from the curvature at the new mean: it is about the tangent there.
    config = {**run.config, "prediction": "linearised"}
    test = held_out(run.folder, data, preprocessing, notes)
    tables, figures = evaluated(result.model, result.posterior, config, preprocessing, test, run.record.widths)
    record = replace(
        run.record,
        config=config,
        data=data.seen_from(run.folder, out).settings(),
        preprocessing=preprocessing.settings(),
        status="finished",
        rows=RowCounts(result.posterior.n, 0 if test is None else len(test.ids)),
        metrics=figures,
        parent={"path": str(run.folder.absolute()), "metrics": run.metrics},
        adaptation=_account(result.report, run.forgets),
        notes=notes,
    )
    parts: dict[str, Any] = {"model": result.model, "posterior": result.posterior, "history": run.history}
    Cache(run.folder / FEATURES).carried(out / FEATURES)
    if (run.folder / ADAPTER).is_dir() and run.folder.resolve() != out.resolve():
        shutil.copytree(run.folder / ADAPTER, out / ADAPTER, dirs_exist_ok=True)
    adapted = RunFolder.create(out, record=record, tables=tables, overwrite=overwrite, **parts)
    give_up(out)
    return adapted


def check_known(run: RunFolder, train: Examples, decisions: RowDecisions) -> None:
    """Raise for decisions about missing rows, and for decisions that change nothing."""
    there = set(train.ids.tolist())
    for i in (*decisions.dropped, *decisions.relabelled):
        if i not in there:
            held_out = bool(run.record.rows.test) and i in run.data("test").ids.tolist()
            what = f"{i}, a held-out row: the model did not learn it" if held_out else f"{i}, which is no row"
            raise InvalidInput(f"decisions: expected ids of training rows, got {what}; `posterity map` lists the ids")
    if not decisions.dropped and not decisions.relabelled:
        raise InvalidInput(
            "decisions: expected at least one row to drop or relabel, got only rows to keep; write drop, or "
            "relabel and a label, beside the rows that are wrong, or use the run as it is"
        )


def _check_remembered(run: RunFolder, decisions: RowDecisions | None, memory: int | None) -> None:
    """Raise for what needs the rows of a run that has forgotten a part of them: only its memory is left."""
    if memory is not None:
        raise InvalidInput("memory: expected none, because the run has forgotten a part of its rows, got a number")
    kept = set() if run.posterior.memory is None else set(run.posterior.memory.ids.tolist())
    for i in () if decisions is None else (*decisions.dropped, *decisions.relabelled):
        if i not in kept:
            raise InvalidInput(
                f"decisions: expected ids among the {len(kept)} rows that the run remembers, because a part of the "
                f"others is forgotten, got {i}; correct the file and train again with `posterity fit`"
            )


def targets_of(decisions: RowDecisions | None, preprocessing: Preprocessing) -> dict[int, Tensor]:
    """New targets by id, as the model takes them."""
    if decisions is None or not decisions.relabelled:
        return {}
    encoded = preprocessing.target.encode(pd.Series(list(decisions.relabelled.values())))
    return dict(zip(decisions.relabelled, encoded))


def _grown(before: Preprocessing, after: Preprocessing) -> tuple[str, ...] | None:
    old, new = before.target, after.target
    if isinstance(old, Classes) and isinstance(new, Classes) and old.names != new.names:
        return new.names
    return None


def _account(report: Report, forgot: bool) -> dict[str, Any]:
    forget = 0.0 if report.drift is None else report.drift.forget
    return {
        "method": report.method,
        "why": report.why,
        "exact": report.exact,
        "steps": report.steps,
        "seconds": report.seconds,
        "passes": report.passes,
        "residual": report.residual,
        "gradient": report.gradient,
        "bound": report.bound,
        "memory": list(report.memory),
        "forget": forget,
        "forgotten": forgot or forget > 0,
        "added": len(report.added),
        "removed": len(report.removed),
        "table": {
            str(k): {str(c): float(v) for c, v in row.items() if v == v}
            for k, row in report.table.to_dict("index").items()
        },
    }
