"""`posterity laplace`: a posterior for a network that is already trained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from posterity.cli._output import Json, Overwrite, dump, figures, notes, say, stem


def laplace(
    checkpoint: Annotated[Path, typer.Argument(help="Trained weights: safetensors, or a state dict.")],
    data: Annotated[Path, typer.Argument(help="Its training data, as the network takes them: nothing is rescaled.")],
    model: Annotated[str, typer.Option(help="module:factory that makes the network (or linear, mlp, cnn).")],
    target: Annotated[str | None, typer.Option(help="The column to predict.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; by default CHECKPOINT-run.")] = None,
    test: Annotated[
        str, typer.Option(metavar="FRACTION|FILE|COLUMN=VALUE", help="Rows the network did not see.")
    ] = "0",
    hidden: Annotated[str | None, typer.Option(metavar="64,64", help="Widths of the hidden layers of mlp.")] = None,
    structure: Annotated[str, typer.Option(help="diag, kron, full or last_layer.")] = "kron",
    task: Annotated[str | None, typer.Option(help="classes, amount or count.")] = None,
    id_column: Annotated[str | None, typer.Option("--id", help="A column of whole numbers that name the rows.")] = None,
    ignore: Annotated[list[str] | None, typer.Option(help="A column to leave out; repeat for each.")] = None,
    inputs: Annotated[str | None, typer.Option(help="For npz: the name of the array of inputs.")] = None,
    size: Annotated[int | None, typer.Option(help="For pictures: height and width to bring them to.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Compute a posterior for a trained network, and write a run folder, which the other commands read.

    Classes are numbered in the order of their names.
    """
    from posterity.cli._fit import widths
    from posterity.runs.config import Config
    from posterity.runs.fitting import refuse_occupied
    from posterity.runs.laplace import laplace_run
    from posterity.runs.locating import locate
    from posterity.runs.planning import prepare

    folder = out or Path(f"{stem(checkpoint)}-run")
    refuse_occupied(folder, overwrite)
    source = locate(data, folder, target, test, id_column, seed, inputs, size, None)
    config = Config(model=model, hidden=None if hidden is None else widths(hidden), method="laplace", seed=seed)
    plan = prepare(folder, config, source, task=task, ignore=tuple(ignore or ()), standardise=False)
    run = laplace_run(plan, checkpoint, overwrite=overwrite, structure=structure)
    if as_json:
        dump({"run": str(folder), "metrics": run.metrics, "rows": run.content["rows"], "notes": plan.notes})
        return
    notes(plan.notes)
    say(f"posterior: {run.posterior}")
    if run.metrics:
        say(f"on {run.record.rows.test} held-out rows: {figures(run.metrics)}")
    say(f"run: {folder}")
