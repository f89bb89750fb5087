"""`posterity predict`: predictions of new rows by a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from posterity.cli._output import Json, dump, figures, notes, say, show_table, stem
from posterity.errors import expected

_PREVIEW = 10


def predict(
    run: Annotated[Path, typer.Argument(help="Folder of the run.")],
    new: Annotated[Path, typer.Argument(help="New rows, in the format of the training data.")],
    out: Annotated[
        Path | None, typer.Option(help="Table to write, .csv or .parquet; by default NEW-predictions.csv.")
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="Abstain below this confidence (classes), or above this standard deviation."),
    ] = None,
    level: Annotated[float, typer.Option(help="Probability of the intervals of amounts and counts.")] = 0.9,
    samples: Annotated[int | None, typer.Option(help="Draws of the weights; by default as in training.")] = None,
    embeddings: Annotated[Path | None, typer.Option(help="An npz with a vector for each row.")] = None,
    as_json: Json = False,
) -> None:
    """Predict new rows: probabilities, or mean, std and interval, with the model's own uncertainty as a column."""
    from posterity.runs import RunFolder
    from posterity.runs.predicting import ABSTAIN, DECISION, predict_run
    from posterity.runs.tables import check_name, write_table

    path = out or Path(f"{stem(new)}-predictions.csv")
    if path.exists() and new.exists() and path.samefile(new):
        raise expected("out", "another file than that of the new rows", str(path))
    check_name(path)
    opened = RunFolder.open(run)
    rows = opened.read(new, embeddings)
    draws = opened.config["samples"] if samples is None else samples
    table, found, unusual = predict_run(opened, rows, samples=draws, level=level, threshold=threshold)
    write_table(table, path)
    notes(unusual)
    if as_json:
        dump({"predictions": table.to_dict("records"), "metrics": found, "notes": unusual, "written": str(path)})
        return
    show_table(table.head(_PREVIEW))
    if len(table) > _PREVIEW:
        say(f"... {len(table) - _PREVIEW} more rows")
    if threshold is not None:
        left = int((table[DECISION] == ABSTAIN).sum())
        say(f"abstained from {left} of {len(table)} rows")
    if found:
        say(f"against the given {opened.dataset.target}: {figures(found)}")
    say(f"written: {path}")
