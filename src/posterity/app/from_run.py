"""What the application shows of a run: its map, rows, history, and after an adaptation the run it came from."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from posterity.app.from_map import from_map
from posterity.app.source import Estimate, Measure, Source, WhatIf
from posterity.batches import batches
from posterity.errors import InvalidInput, RefusedFile
from posterity.features.pictures import square
from posterity.memory import MemoryMap
from posterity.posterior import FittedModel
from posterity.runs import RunFolder
from posterity.runs.columns import Category, as_text
from posterity.runs.encoding import PICTURE
from posterity.runs.mapping import readable
from posterity.runs.readers import FILE, Rows
from posterity.runs.targets import Classes, Target

CURVES = {"loss": "train", "validation_loss": "test"}  # columns of the history, and what they are called here
SIDE, THUMBNAILS = 64, 5000  # pixels of a photograph on the page, and up to how many of them it shows
NAMED = 20_000  # pictures up to which the page has the names of their files


def from_run(
    run: RunFolder | str | Path, *, beside: str | Path | None = None, memory: MemoryMap | None = None
) -> Source:
    """Everything the browser can ask a run.

    Args:
        run: The run, or its folder.
        beside: Folder of a second run of the same rows; by default the one that this one was adapted from.
        memory: Its memory map, if there is one.

    Returns:
        A `Source`; marks are kept in `decisions.csv` in the folder.
    """
    run = run if isinstance(run, RunFolder) else RunFolder.open(run)
    m, train = memory or run.memory_map(), run.select("train")
    held_out = run.select("test") if run.dataset.test else None
    test = run.data("test") if held_out is not None and len(held_out.rows) else None
    parent = _parent(run)
    other = RunFolder.open(beside) if beside is not None else parent
    source = from_map(
        m,
        test=test,
        examples=_shown(train.rows, run),
        test_examples=None if held_out is None or test is None else _shown(held_out.rows, run),
        title=run.folder.resolve().name,
        history=run.memory_history if run.has("memory-history") else None,
        curves=_curves(run),
        beside=None if other is None else other.memory_map(),
        beside_title="" if other is None else other.folder.resolve().name,
        outcome=None if parent is None or test is None else _outcome(parent, run, m, test),
        decisions=run.folder / "decisions.csv",
    )
    if source.test is not None and held_out is not None:
        source = replace(source, test=source.test.assign(id=held_out.ids.numpy()), test_names=_files(held_out.rows))
    return _in_units(replace(source, names=_files(train.rows), adapt=_command(run)), run)


def _command(run: RunFolder) -> str:
    """What applies the decisions that are kept in a run."""
    return shlex.join(["posterity", "adapt", str(run.folder), "--decisions", str(run.folder / "decisions.csv")])


def _files(rows: Rows) -> tuple[str, ...]:
    """The files of pictures, within their folder."""
    if rows.block is None or FILE not in rows.table or len(rows) > NAMED:
        return ()
    return tuple(as_text(rows.table[FILE]))


def _shown(rows: Rows, run: RunFolder) -> Any:
    """Pictures, texts, or the rows without what is to be predicted."""
    if rows.block is not None and rows.block.ndim > 2:
        return rows.block
    encoding = run.dataset.encoding
    if encoding is not None and encoding.kind == PICTURE and len(rows) <= THUMBNAILS:
        return _thumbnails(rows.table[encoding.column].tolist(), run)
    levels = [column.name for column in run.preprocessing.columns if isinstance(column, Category)]
    table = rows.table.drop(columns=[run.dataset.target], errors="ignore")
    table = table.apply(lambda column: _texts(column) if column.name in levels else _numbers(column))
    texts = [name for name in table if not pd.api.types.is_numeric_dtype(table[name])]
    if len(table.columns) == 1 and texts:
        return table[texts[0]].fillna("").astype(str).tolist()
    return table if len(table.columns) or rows.block is None else rows.block


def _thumbnails(names: Sequence[str], run: RunFolder) -> np.ndarray[Any, Any]:
    """The photographs that an encoder has read, small; grey where a name is in no folder of the run, or in several."""
    folders = [path if path.is_dir() else path.parent for path in run.dataset.places(run.folder)]
    found = np.full((len(names), SIDE, SIDE, 3), 128, np.uint8)
    for row, name in enumerate(names):
        files = [folder / name for folder in folders if (folder / name).is_file()]
        picture = square(files[0], SIDE) if len(files) == 1 else None
        if picture is not None:
            found[row] = picture
    return found


def _numbers(column: pd.Series[Any]) -> pd.Series[Any]:
    """A column as numbers, if all its values are numbers."""
    numbers = pd.to_numeric(column, errors="coerce")
    return numbers if numbers.notna().sum() == column.notna().sum() else column


def _texts(column: pd.Series[Any]) -> pd.Series[Any]:
    """A column of categories, which are names even where they are written in digits, as postcodes are."""
    return pd.Series(as_text(column), index=column.index, dtype=object)


def _curves(run: RunFolder) -> pd.DataFrame | None:
    """Train and test loss by epoch, and the leave-one-out loss where the memory was watched."""
    history = pd.DataFrame(run.history)
    if "epoch" not in history or history["epoch"].duplicated().any():
        return None
    curves = history[["epoch", *(name for name in CURVES if name in history)]].rename(columns=CURVES)
    if run.has("memory-history"):
        loo = run.memory_history.groupby("epoch")["loo_nll"].mean().rename("leave_one_out")
        curves = curves.merge(loo, on="epoch", how="left")
    return curves


def _in_units(source: Source, run: RunFolder) -> Source:
    """Amounts and counts in the units of the data; classes stay numbers, which their names explain."""
    target = run.preprocessing.target
    if isinstance(target, Classes):
        return source
    return replace(
        source,
        table=readable(source.table, target),
        test=None if source.test is None else readable(source.test, target),
        beside=None if source.beside is None else readable(source.beside, target),
        what_if=None if source.what_if is None else _what_if_in_units(source.what_if, target),
        measure=None if source.measure is None else _measure_in_units(source.measure, target),
    )


def _what_if_in_units(ask: WhatIf, target: Target) -> WhatIf:
    """The same question with new labels, and answers about single examples, in the units of the data."""

    def asked(remove: Sequence[int], relabel: Mapping[int, Any]) -> Estimate:
        found = ask(remove, _encoded(target, relabel))
        units = (
            {name: target.decode(one[name]).item() for name in ("label", "before", "after")} for one in found.moved
        )
        return replace(found, moved=[{**one, **values} for one, values in zip(found.moved, units)])

    return asked


def _measure_in_units(ask: Measure, target: Target) -> Measure:
    """The same question with new labels in the units of the data."""
    return lambda remove, relabel, progress: ask(remove, _encoded(target, relabel), progress)


def _encoded(target: Target, relabel: Mapping[int, Any]) -> dict[int, Any]:
    """New labels as the model takes them."""
    return dict(zip(relabel, target.encode(pd.Series(list(relabel.values()), dtype=object))))


def _parent(run: RunFolder) -> RunFolder | None:
    """The run that this one was adapted from, if it is still there."""
    about = run.record.parent
    if not isinstance(about, dict):
        return None
    try:
        return RunFolder.open(about["path"])
    except (RefusedFile, InvalidInput, KeyError):
        return None


def _outcome(parent: RunFolder, run: RunFolder, m: MemoryMap, test: Any) -> pd.DataFrame | None:
    """Predicted against actual change of each test loss, where rows were dropped or relabelled and none added."""
    before, after = parent.dataset, run.dataset
    known = set(before.relabelled.items())
    remove = [i for i in after.removed if i not in before.removed]
    relabel = {int(i): label for i, label in after.relabelled.items() if (i, label) not in known}
    if len(before.added) != len(after.added) or not (remove or relabel) or m.trained is None:
        return None
    targets = _encoded(parent.preprocessing.target, relabel)
    predicted = parent.memory_map().what_if(remove=remove, relabel=targets).on(test)
    change = (predicted.loss_after - predicted.loss_before).numpy()
    actual = _losses(m.trained, test) - predicted.loss_before.numpy()
    return pd.DataFrame({"id": np.arange(len(change)), "predicted": change, "actual": actual})


def _losses(trained: FittedModel, test: Any) -> np.ndarray[Any, Any]:
    """The loss of every test example at the posterior mean."""
    found = []
    with trained.at_mean():
        for batch in batches(test):
            batch = batch.to(trained.device)
            f = trained.outputs(batch.inputs)
            found.append(trained.likelihood.loss(f, trained.targets(f, batch.targets)).double().cpu().numpy())
    return np.concatenate(found)
