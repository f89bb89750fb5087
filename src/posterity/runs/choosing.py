"""Which rows of a pool a run would learn most from."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
from torch import Tensor

from posterity.cells import number
from posterity.errors import InvalidInput
from posterity.exploration import Picks, acquire
from posterity.runs._folder import RunFolder
from posterity.runs.columns import as_text
from posterity.runs.predicting import predict_run
from posterity.runs.readers import Rows
from posterity.runs.targets import Amount

_SOME = 20  # rows to label at a time


@dataclass(frozen=True, eq=False)
class ChosenRows:
    """The rows of a pool to label next.

    Args:
        picks: Their places in the pool, scores and reasons.
        table: The rows with an empty target, ready to be labelled.
        shown: The columns of the table that a person needs to see.
        notes: What is unusual about the pool.
    """

    picks: Picks
    table: pd.DataFrame
    shown: list[str]
    notes: list[str]


def choose_rows(
    run: RunFolder,
    pool: Rows,
    k: int | None = None,
    criterion: str = "auto",
    *,
    power: float | None = None,
    samples: int = 64,
    seed: int = 0,
) -> ChosenRows:
    """Choose the rows whose labels would teach a run most, among those without one that it has not learnt from.

    Args:
        run: The run.
        pool: Rows in the format of its training data.
        k: How many to choose; by default 20, or all where there are fewer.
        criterion: As for `po.acquire`.
        power: Draw in proportion to score^power.
        samples: Draws of the weights.
        seed: Seed of everything random.
    """
    target = run.dataset.target
    notes: list[str] = []
    has_label = pool.table[target].notna().to_list() if target in pool.table else [False] * len(pool)
    if all(has_label):
        raise InvalidInput(
            f"pool: expected rows without a value of {target}, got one in every row; leave the cells to label empty"
        )
    inputs = run.preprocessing.inputs(pool, notes)
    taken = _taken(run, pool, inputs)
    if any(taken):
        notes.append(f"pool: {sum(taken)} rows are in the run already; they are not asked for again")
    closed = [row for row, why in enumerate(zip(has_label, taken)) if any(why)]
    picks = acquire(
        run.model(),
        run.posterior,
        inputs,
        max(1, min(_SOME, len(pool) - len(closed))) if k is None else k,
        criterion,
        labelled=run.data("train"),
        exclude=closed,
        power=power,
        samples=samples,
        seed=seed,
    )
    picks = _in_units(run, pool, picks)
    place, score, reason = _about(pool, target)
    chosen = pool.take(picks.ids.numpy()).table.drop(columns=target, errors="ignore")
    chosen.insert(0, target, None)
    table = chosen.assign(**{place: picks.ids.numpy(), score: picks.scores.numpy()}).assign(**{reason: list(picks.why)})
    shown = [place, reason, *(str(name) for name in pool.table.columns if name != target)]
    return ChosenRows(picks, table, shown, notes)


def _in_units(run: RunFolder, rows: Rows, picks: Picks) -> Picks:
    """The same with what the model thinks of amounts, the first reason, in the units of the data."""
    if not isinstance(run.preprocessing.target, Amount):
        return picks
    table, _, _ = predict_run(run, rows.take(picks.ids.numpy()))
    belief = (f"{number(mean)} ± {number(std)}" for mean, std in zip(table["mean"], table["std"]))
    return replace(picks, why=tuple("; ".join((own, *why.split("; ")[1:])) for own, why in zip(belief, picks.why)))


def _taken(run: RunFolder, rows: Rows, inputs: Tensor) -> list[bool]:
    """Which rows the run has learnt from since it was made: by id where there are ids, otherwise one copy for each."""
    data, (x, _, ids) = run.dataset, run.data("train")
    if data.id_column is not None and data.id_column in rows.table:
        known = {str(i) for i in ids.tolist()}
        return [text in known for text in as_text(rows.table[data.id_column])]
    first = min((source["first"] for source in data.added), default=None)
    if data.encoding is not None and data.encoding.column in rows.table and first is not None:
        # Vectors differ in their last bits with the texts beside which they were computed; the texts do not.
        records = run.records("train")
        added = Counter(as_text(records.loc[records["id"] >= first, data.encoding.column]))
        return [_one_less(added, text) for text in as_text(rows.table[data.encoding.column])]
    left = Counter() if first is None else Counter(row.tobytes() for row in x[ids >= first].numpy())
    return [_one_less(left, row.tobytes()) for row in inputs.numpy()]


def _one_less(left: Counter[Any], key: Any) -> bool:
    """Whether there was one left, which is taken."""
    left[key] -= 1
    return left[key] >= 0


def _about(rows: Rows, target: str) -> list[str]:
    """What the columns with place, score and reason are called; names of the data are not theirs to take."""
    return [f"next_{name}" if name == target or name in rows.table else name for name in ("row", "score", "why")]
