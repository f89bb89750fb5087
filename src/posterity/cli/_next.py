"""`posterity next`: which rows of a pool to label next."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posterity.cli._output import Json, dump, notes, number, numbered, say, show_table, stem, successor, then
from posterity.errors import InvalidInput, expected

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from posterity.exploration import Picks
    from posterity.runs import RunFolder
    from posterity.runs.readers import Rows


def next_rows(
    run: Annotated[Path, typer.Argument(help="Folder of the run.")],
    pool: Annotated[Path, typer.Argument(help="Rows without labels, in the format of the training data.")],
    k: Annotated[int, typer.Option("-k", help="How many rows to choose.")] = 20,
    criterion: Annotated[
        str,
        typer.Option(
            help="bald, entropy, margin, bald_linearised, leave_one_out, batch_bald, batch_bald_linearised, k_centre "
            "or random."
        ),
    ] = "bald",
    power: Annotated[
        float | None, typer.Option(help="Draw in proportion to score^POWER: more different rows at once.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="New table to write, .csv or .parquet; by default POOL-next.csv.")
    ] = None,
    embeddings: Annotated[Path | None, typer.Option(help="An npz with a vector for each row.")] = None,
    samples: Annotated[int, typer.Option(help="Draws of the weights.")] = 64,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    as_json: Json = False,
) -> None:
    """Choose the rows whose labels would teach most, and write them down to be labelled, with the reason for each."""
    from posterity.runs import RunFolder
    from posterity.runs.readers import write_block
    from posterity.runs.tables import check_name, write_table

    opened = RunFolder.open(run)
    rows, target = opened.read(pool, embeddings), opened.dataset.target
    encoding = opened.dataset.encoding
    path, arrays = _places(out, stem(pool), rows, encoding is not None and encoding.kind == "text")
    check_name(path)
    unusual: list[str] = []
    picks = _in_units(opened, rows, _picked(opened, rows, k, criterion, power, samples, seed, unusual))
    table = _to_label(rows, picks, target)
    write_table(table, path)
    if arrays is not None and rows.block is not None:
        write_block(rows.block[picks.ids.numpy()], arrays)
    notes(unusual)
    written = {"written": path} if arrays is None else {"written": path, "embeddings": arrays}
    if as_json:
        dump({"criterion": criterion, "rows": picks.table.to_dict("records"), "notes": unusual, **written})
        return
    place, _, reason = _about(rows, target)
    show_table(table[[place, reason, *[name for name in rows.table.columns if name != target]]])
    say(f"to label, in the column {target!r}: {path}")
    beside = () if arrays is None else ("--embeddings", arrays)
    then("adapt", run, "--add", path, *beside, "--out", successor(run))


def _picked(
    opened: RunFolder,
    rows: Rows,
    k: int,
    criterion: str,
    power: float | None,
    samples: int,
    seed: int,
    unusual: list[str],
) -> Picks:
    """The rows to label next, among those that have no label yet."""
    from posterity.exploration import acquire

    target = opened.dataset.target
    has_label = rows.table[target].notna().to_list() if target in rows.table else [False] * len(rows)
    if all(has_label):
        raise InvalidInput(f"pool: expected rows without a {target}, got one in every row")
    inputs = opened.preprocessing.inputs(rows, unusual)
    taken = _taken(opened, rows, inputs)
    if any(taken):
        unusual.append(f"pool: {sum(taken)} rows are in the run already; they are not asked for again")
    return acquire(
        opened.model(),
        opened.posterior,
        inputs,
        k,
        criterion,
        labelled=opened.data("train"),
        exclude=[row for row, closed in enumerate(zip(has_label, taken)) if any(closed)],
        power=power,
        samples=samples,
        seed=seed,
    )


def _in_units(opened: RunFolder, rows: Rows, picks: Picks) -> Picks:
    """The same with what the model thinks of amounts, which is said first, in the units of the data."""
    from posterity.runs.predicting import predict_run
    from posterity.runs.targets import Amount

    if not isinstance(opened.preprocessing.target, Amount):
        return picks
    table, _, _ = predict_run(opened, rows.take(picks.ids.numpy()))
    belief = (f"{number(mean)} ± {number(std)}" for mean, std in zip(table["mean"], table["std"]))
    return replace(picks, why=tuple("; ".join((own, *why.split("; ")[1:])) for own, why in zip(belief, picks.why)))


def _taken(opened: RunFolder, rows: Rows, inputs: Tensor) -> list[bool]:
    """Which rows the run has learnt from since it was made: by id where there are ids, otherwise one copy for each."""
    from posterity.runs.columns import as_text

    data, (x, _, ids) = opened.dataset, opened.data("train")
    if data.id_column is not None and data.id_column in rows.table:
        known = {str(i) for i in ids.tolist()}
        return [text in known for text in as_text(rows.table[data.id_column])]
    first = min((source["first"] for source in data.added), default=None)
    if data.encoding is not None and data.encoding.column in rows.table and first is not None:
        # Vectors differ in their last bits with the texts beside which they were computed; the texts do not.
        records = opened.records("train")
        added = Counter(as_text(records.loc[records["id"] >= first, data.encoding.column]))
        return [_one_less(added, text) for text in as_text(rows.table[data.encoding.column])]
    left = Counter() if first is None else Counter(row.tobytes() for row in x[ids >= first].numpy())
    return [_one_less(left, row.tobytes()) for row in inputs.numpy()]


def _one_less(left: Counter[Any], key: Any) -> bool:
    """Whether there was one left, which is taken."""
    left[key] -= 1
    return left[key] >= 0


def _places(out: Path | None, stem: str, rows: Rows, texts: bool) -> tuple[Path, Path | None]:
    """Where to write the chosen rows, and their arrays if texts do not say all: no file with labels is written over."""
    files = [out] if out is not None else (Path(f"{name}.csv") for name in numbered(f"{stem}-next"))
    for path in files:
        arrays = None if rows.block is None or texts else path.with_suffix(".npz")
        if not path.exists() and (arrays is None or not arrays.exists()):
            return path, arrays
    raise expected("out", "a new file (labels may stand in an old one)", str(out))


def _to_label(rows: Rows, picks: Picks, target: str) -> pd.DataFrame:
    """The chosen rows with an empty target, their place in the pool, and why they were chosen."""
    chosen = rows.take(picks.ids.numpy()).table.drop(columns=target, errors="ignore")
    chosen.insert(0, target, None)
    place, score, reason = _about(rows, target)
    return chosen.assign(**{place: picks.ids.numpy(), score: picks.scores.numpy()}).assign(**{reason: list(picks.why)})


def _about(rows: Rows, target: str) -> list[str]:
    """What the columns with place, score and reason are called; names of the data are not theirs to take."""
    return [f"next_{name}" if name == target or name in rows.table else name for name in ("row", "score", "why")]
