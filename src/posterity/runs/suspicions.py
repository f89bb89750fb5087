"""Warnings about a table that affect how far to trust figures from it: how it is read, and what misleads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from posterity.runs.inferring import counts_rows
from posterity.runs.preprocessing import Examples, Preprocessing
from posterity.runs.readers import Rows
from posterity.runs.targets import Classes

_SOME = 0.01  # share of held-out rows that may also be training rows without a word
_CHANCE = 1.5  # times as many copies as chance would make, below which nothing is said
_RARE = 10  # rows of a class below which neither learning nor judging it means much
_PIECE = 50_000  # rows that are looked at together, for the memory
_ONE_SIDED = 0.9  # share of the largest class at which accuracy says little


def suspicions(preprocessing: Preprocessing, rows: Rows, train: Examples, test: Examples | None) -> list[str]:
    """Notes on the training rows, and on the split.

    Args:
        preprocessing: What the columns became.
        rows: The training rows.
        train: The same as examples.
        test: The held-out examples, if there are any.
    """
    found = [column.remark(rows.table[column.name]) for column in preprocessing.columns if column.width]
    found.append(preprocessing.target.remark())
    for name in [column.name for column in preprocessing.columns if column.kind == "number"]:
        if counts_rows(rows.table[name]):
            found.append(f"{name}: rises from row to row; if it only numbers them, leave it out: --ignore {name}")
    if isinstance(preprocessing.target, Classes):
        found += _classes(preprocessing.target, train.targets)
        kept = [column.name for column in preprocessing.columns if column.width]
        found += _answers(preprocessing.target, rows.table[kept], train.targets)
        if test is not None:
            found.append(_untested(preprocessing.target, test.targets))
    if test is not None and train.inputs.ndim == 2:
        found.append(_twice(train, test, [column.width for column in preprocessing.columns]))
    return [note for note in found if note is not None]


def _classes(target: Classes, targets: Tensor) -> list[str | None]:
    """Classes with few rows, and one with nearly all of them."""
    counts, n = targets.bincount(minlength=target.outputs).tolist(), len(targets)
    rare = sorted((count, name) for count, name in zip(counts, target.names) if count < min(_RARE, n / target.outputs))
    notes: list[str | None] = []
    if rare:
        some = ", ".join(f"{name!r} {count}" for count, name in rare[:3]) + (" ..." if len(rare) > 3 else "")
        notes.append(f"{target.name}: few of {n} training rows are of some classes ({some}); collect more of them")
    spellings = _spellings(target.names)
    if spellings:
        notes.append(f"{target.name}: {spellings} differ only in spelling; if they are one class, correct the file")
    share, name = max(zip((count / n for count in counts), target.names))
    if share >= _ONE_SIDED:
        notes.append(
            f"{target.name}: {share:.1%} of the training rows are {name!r}, so always predicting it is that accurate;"
            " judge by balanced_accuracy and by nll"
        )
    return notes


def _answers(target: Classes, table: pd.DataFrame, targets: Tensor) -> list[str]:
    """A note on each column of few values, each of which is of one class only: often a copy of the target."""
    classes = pd.Series(targets.numpy(), index=table.index)
    few = [name for name in table if 2 <= table[name].nunique() <= len(table) / _RARE]
    return [
        f"{name}: each of its values goes with one {target.name} only; if it is not known before {target.name}, leave"
        f" it out: --ignore {name}"
        for name in few
        if classes.groupby(table[name], dropna=False).nunique().max() == 1
    ]


def _spellings(names: Sequence[str]) -> str:
    """Names of classes that differ only in capitals, spaces or underscores, "" where there are none."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(re.sub(r"[\s_]+", " ", name.casefold()).strip(), []).append(name)
    groups = [" and ".join(map(repr, group)) for group in alike.values() if len(group) > 1]
    return "; ".join(groups[:3]) + (" ..." if len(groups) > 3 else "")


def _untested(target: Classes, targets: Tensor) -> str | None:
    """Classes that no held-out row is of."""
    counts = targets.bincount(minlength=target.outputs).tolist()
    names = [name for name, count in zip(target.names, counts) if not count]
    if not names:
        return None
    some = ", ".join(repr(name) for name in names[:3]) + (" ..." if len(names) > 3 else "")
    return f"{target.name}: no held-out row is of class {some}; figures do not cover it"


def _twice(train: Examples, test: Examples, widths: list[int]) -> str | None:
    """Held-out rows that training has met, target included, where chance does not explain them.

    Rows of a few answers each are alike by chance. Were the columns x independent given the target y, a row would be
    among n training rows with probability 1 − (1 − p(y) Π p(x, y)/p(y))ⁿ.
    """
    seen, asked = _hashes(train), _hashes(test)
    count, n = int(asked.isin(seen).sum()), len(seen)
    if count < max(1, _SOME * len(asked)):
        return None
    places = [0, *torch.tensor(widths).cumsum(0).tolist(), train.inputs.shape[1]]
    target, *columns = (
        _hashes(test, begin, end).map(_hashes(train, begin, end).value_counts() / n).fillna(0.0).to_numpy()
        for begin, end in ((0, 0), *((begin, end) for begin, end in pairwise(places) if begin < end))
    )
    share = target * np.prod([column / np.maximum(target, 1 / n) for column in columns], axis=0)
    if count <= _CHANCE * (1 - (1 - share) ** n).sum():
        return None
    return (
        f"{count} of {len(asked)} held-out rows ({count / len(asked):.0%}) are also among the training rows, so figures"
        " are too good; remove the copies, or hold out whole groups: --test COLUMN=VALUE"
    )


def _hashes(examples: Examples, begin: int = 0, end: int | None = None) -> pd.Series[int]:
    """A number for each row, the same for the same target and the same inputs between two places."""
    pieces = zip(examples.inputs.split(_PIECE), examples.targets.split(_PIECE), strict=True)
    tables = (torch.cat([x[:, begin:end], y.reshape(len(x), -1).float()], 1).numpy() for x, y in pieces)
    found = [pd.util.hash_pandas_object(pd.DataFrame(table), index=False) for table in tables]
    return pd.concat(found, ignore_index=True)
