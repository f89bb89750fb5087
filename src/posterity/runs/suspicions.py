"""What a person should know about a table before trusting figures from it: how it is read, and what misleads."""

from __future__ import annotations

import pandas as pd
import torch
from torch import Tensor

from posterity.runs.columns import counts_rows
from posterity.runs.preprocessing import Examples, Preprocessing
from posterity.runs.readers import Rows
from posterity.runs.targets import Classes

_SOME = 0.01  # share of held-out rows that may also be training rows without a word
_RARE = 10  # rows of a class below which neither learning nor judging it means much
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
    for name in [column.name for column in preprocessing.columns if column.kind == "number"]:
        if counts_rows(rows.table[name]):
            found.append(f"{name}: rises from row to row; if it only numbers them, leave it out: --ignore {name}")
    if isinstance(preprocessing.target, Classes):
        found += _classes(preprocessing.target, train.targets)
    if test is not None and train.inputs.ndim == 2:
        found.append(_twice(train, test))
    return [note for note in found if note is not None]


def _classes(target: Classes, targets: Tensor) -> list[str | None]:
    """Classes with few rows, and one with nearly all of them."""
    counts, n = targets.bincount(minlength=target.outputs).tolist(), len(targets)
    rare = sorted((count, name) for count, name in zip(counts, target.names) if count < min(_RARE, n / target.outputs))
    notes: list[str | None] = []
    if rare:
        some = ", ".join(f"{name!r} {count}" for count, name in rare[:3]) + (" ..." if len(rare) > 3 else "")
        notes.append(f"{target.name}: few of {n} training rows are of some classes ({some}); collect more of them")
    share, name = max(zip((count / n for count in counts), target.names))
    if share >= _ONE_SIDED:
        notes.append(
            f"{target.name}: {share:.1%} of the training rows are {name!r}, and so is the accuracy of always saying so;"
            " judge by balanced_accuracy and by nll"
        )
    return notes


def _twice(train: Examples, test: Examples) -> str | None:
    """Held-out rows that training has met, target included."""
    seen, asked = (_hashes(part) for part in (train, test))
    count = int(asked.isin(seen).sum())
    if count < max(1, _SOME * len(asked)):
        return None
    return (
        f"{count} of {len(asked)} held-out rows ({count / len(asked):.0%}) are also among the training rows, so figures"
        " flatter the model; remove the copies, or hold out whole groups: --test COLUMN=VALUE"
    )


def _hashes(examples: Examples) -> pd.Series[int]:
    """A number for each row, the same for the same values."""
    values = torch.cat([examples.inputs, examples.targets.reshape(len(examples.inputs), -1).float()], 1)
    return pd.util.hash_pandas_object(pd.DataFrame(values.numpy()), index=False)
