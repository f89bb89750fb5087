"""`posterity next`: which rows of a pool to label next."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from posterity.cli._output import Json, dump, notes, numbered, say, show_table, stem, successor, then
from posterity.errors import expected

if TYPE_CHECKING:
    from posterity.runs.readers import Rows


def next_rows(
    run: Annotated[Path, typer.Argument(help="Folder of the run.")],
    pool: Annotated[Path, typer.Argument(help="Rows without labels, in the format of the training data.")],
    k: Annotated[
        int | None, typer.Option("-k", help="How many rows to choose; default: 20, or all where there are fewer.")
    ] = None,
    criterion: Annotated[
        str,
        typer.Option(
            help="auto (diverse_margin for classes, else bald), diverse_margin, margin, entropy, bald, "
            "bald_linearised, leave_one_out, batch_bald, batch_bald_linearised, k_centre or random."
        ),
    ] = "auto",
    power: Annotated[
        float | None, typer.Option(help="Draw rows in proportion to score^POWER, which makes them more varied.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="New table to write, .csv or .parquet; by default POOL-next.csv.")
    ] = None,
    embeddings: Annotated[Path | None, typer.Option(help="An npz with a vector for each row.")] = None,
    samples: Annotated[int, typer.Option(help="Draws of the weights.")] = 64,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    as_json: Json = False,
) -> None:
    """Choose the rows whose labels would teach most, and write a table of them to label, with the reason for each."""
    from posterity.runs import RunFolder
    from posterity.runs.choosing import choose_rows
    from posterity.runs.readers import write_block
    from posterity.runs.tables import check_name, write_table

    opened = RunFolder.open(run)
    rows, encoding = opened.read(pool, embeddings), opened.dataset.encoding
    path, arrays = _places(out, stem(pool), rows, encoding is not None and encoding.kind == "text")
    check_name(path)
    chosen = choose_rows(opened, rows, k, criterion, power=power, samples=samples, seed=seed)
    write_table(chosen.table, path)
    if arrays is not None and rows.block is not None:
        write_block(rows.block[chosen.picks.ids.numpy()], arrays)
    notes(chosen.notes)
    written = {"written": path} if arrays is None else {"written": path, "embeddings": arrays}
    if as_json:
        dump(
            {
                "criterion": chosen.picks.criterion,
                "rows": chosen.picks.table.to_dict("records"),
                "notes": chosen.notes,
                **written,
            }
        )
        return
    show_table(chosen.table[chosen.shown])
    say(f"to label, in the column {opened.dataset.target!r}: {path}")
    beside = () if arrays is None else ("--embeddings", arrays)
    then("adapt", run, "--add", path, *beside, "--out", successor(run))


def _places(out: Path | None, stem: str, rows: Rows, texts: bool) -> tuple[Path, Path | None]:
    """Where to write the chosen rows, and their arrays if texts do not say all: no file with labels is written over."""
    files = [out] if out is not None else (Path(f"{name}.csv") for name in numbered(f"{stem}-next"))
    for path in files:
        arrays = None if rows.block is None or texts else path.with_suffix(".npz")
        if not path.exists() and (arrays is None or not arrays.exists()):
            return path, arrays
    raise expected("out", "a new file (an old one may hold labels)", str(out))
