"""`posterity fit`: from a file of data to a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posterity.cells import counted, number
from posterity.cli._output import Json, Overwrite, dump, figures, notes, say, stem
from posterity.errors import InvalidInput, expected, require

if TYPE_CHECKING:
    from posterity.runs import RunFolder
    from posterity.runs.config import Config
    from posterity.runs.data import Data
    from posterity.runs.planning import Plan

METHODS = (  # said here so that `--help` need not load torch
    "variational, ivon, laplace, dropout, ensemble, swag, bayes_by_backprop, mixture_ivon, evon, soba, vadam, vogn, "
    "ogn, variational_newton, bsam; for weights of ±1 bayesbinn; without a posterior adamw, sgd, sam, ste"
)


def fit(
    ctx: typer.Context,
    data: Annotated[
        Path | None, typer.Argument(help="CSV, TSV, parquet, JSON lines, npz, idx, or a folder of pictures.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="The column to predict.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; by default DATA-run.")] = None,
    test: Annotated[
        str, typer.Option(metavar="FRACTION|FILE|COLUMN=VALUE", help="What to hold out for testing; 0 for nothing.")
    ] = "0.2",
    model: Annotated[
        str | None,
        typer.Option(
            help="tabular, residual (for amounts), linear, mlp, cnn, head (a linear classifier of features), or "
            "module:factory."
        ),
    ] = None,
    hidden: Annotated[str | None, typer.Option(metavar="64,64", help="Widths of the hidden layers.")] = None,
    method: Annotated[
        str, typer.Option(help=f"auto (variational; for the models linear ivon, head laplace), {METHODS}.")
    ] = "auto",
    task: Annotated[
        str | None, typer.Option(help="classes, amount or count; by default inferred from the target.")
    ] = None,
    id_column: Annotated[str | None, typer.Option("--id", help="A column of whole numbers that name the rows.")] = None,
    ignore: Annotated[list[str] | None, typer.Option(help="A column to leave out; repeat for each.")] = None,
    text: Annotated[str | None, typer.Option(help="A column to be read as text.")] = None,
    embeddings: Annotated[Path | None, typer.Option(help="An npz with a vector for each row, for its text.")] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            metavar="PATH|none",
            help="Weights of a frozen network that reads the text or the pictures; by default those of an installed "
            "package. none: words are counted, pictures learnt from their pixels.",
        ),
    ] = None,
    tune: Annotated[
        str | None, typer.Option(metavar="lora", help="Tune the encoder of the text first, by low-rank adapters.")
    ] = None,
    inputs: Annotated[str | None, typer.Option(help="For npz: the name of the array of inputs.")] = None,
    size: Annotated[int | None, typer.Option(help="For pictures: height and width to bring them to.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data; by default by cross-validation.")] = None,
    folds: Annotated[int, typer.Option(help="Parts of the cross-validation, which also finds wrong labels.")] = 5,
    batch_size: Annotated[int | None, typer.Option(help="Examples a step; 64, for tables up to 128 or more.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate; by default the method's own.")] = None,
    ess: Annotated[
        float | None, typer.Option(help="Effective sample size of IVON; by default the number of rows.")
    ] = None,
    hess_init: Annotated[float | None, typer.Option(help="Initial Hessian of IVON; by default probed.")] = None,
    prior: Annotated[
        float | None, typer.Option(help="Precision of the prior on every weight; for ivon 10, less for few rows.")
    ] = None,
    dropout: Annotated[float | None, typer.Option(help="Rate of dropout after each hidden layer.")] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Anything else that the method takes.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    track: Annotated[
        bool | None, typer.Option(help="Record the memory map at several epochs; by default if that is cheap.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where to train: cpu, cuda.")] = "cpu",
    resume: Annotated[bool, typer.Option("--resume", help="Resume an interrupted run, exactly.")] = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Train a model on a table or on pictures, and write a run folder, which the other commands read.

    Exit code 130 after Ctrl-C: the run is usable, and --resume continues it.
    """
    from posterity.runs import fitting, planning
    from posterity.runs.config import Config
    from posterity.runs.locating import locate
    from posterity.runs.tuning import tuned

    folder = out or (Path(f"{stem(data)}-run") if data else None)
    if folder is None:
        raise InvalidInput("fit: expected a file of data, or --resume --out RUN, got neither")
    if resume:
        plan = planning.reopen(folder)
        _same(plan, {name: value for name, value in ctx.params.items() if _said(ctx, name)})
    else:
        if data is None:
            raise InvalidInput("fit: expected a file of data to train on, got none")
        fitting.refuse_occupied(folder, overwrite)
        given = {"ess": ess, "hess_init": hess_init, "prior": prior}
        options = {name: value for name, value in given.items() if value is not None} | _options(option)
        config = Config(
            model=model,
            hidden=None if hidden is None else widths(hidden),
            method=method,
            epochs=epochs,
            folds=folds,
            batch_size=batch_size,
            lr=lr,
            options=options,
            dropout=dropout,
            seed=seed,
            track=track,
            device=device,
        )
        source = locate(data, folder, target, test, id_column, seed, inputs, size, embeddings)
        source, said = _encoded(source, data, text, encoder, pixels=model is not None or size is not None)
        if said and not as_json:
            say(said)
        if tune is not None:
            require(tune == "lora", "tune", "lora", tune)
            source = tuned(source, folder, seed, task)
        columns = {"task": task, "text": text if source.encoding is None else None, "ignore": tuple(ignore or ())}
        plan = _prepared(folder, config, source, columns, quiet=as_json)
    run = fitting.train(plan, anew=not resume)
    _tell(run, plan, as_json)
    if run.status == "interrupted":
        raise typer.Exit(130)


def _encoded(source: Data, path: Path, text: str | None, encoder: str | None, pixels: bool) -> tuple[Data, str]:
    """The rows with vectors of a frozen network for their texts or pictures, and a message about it."""
    from posterity.runs.encoding import choose

    if source.source.embeddings is not None:
        if encoder is not None:
            raise expected("encoder", "none beside --embeddings, which are vectors already", encoder)
        return source, ""
    encoding, said = choose(path, text, encoder, pixels)
    return replace(source, encoding=encoding), said


def _prepared(folder: Path, config: Config, data: Data, columns: dict[str, Any], quiet: bool) -> Plan:
    from posterity.runs import planning, probing
    from posterity.runs.networks import HEAD

    plan = planning.prepare(folder, config, data, **columns)
    if not quiet:
        say(_summary(plan))
    plan = probing.probe(plan)
    if not quiet and plan.folds is not None:
        length = "" if plan.config.epochs is None else f"; {counted(plan.config.epochs, 'epoch')}"
        say(f"cross-validation: loss {number(plan.folds.loss)} on rows not learnt from{length}")
    if not quiet and (plan.config.method == "ivon" or plan.config.model == HEAD):
        chosen = ({} if plan.config.lr is None else {"lr": plan.config.lr}) | dict(plan.config.options)
        said = {name: number(value) if isinstance(value, float) else value for name, value in chosen.items()}
        say("settings: " + ", ".join(f"{name} {value}" for name, value in said.items()))
    return plan


def _summary(plan: Plan) -> str:
    from posterity.runs.preprocessing import ENCODED

    target, used = plan.preprocessing.target, [c for c in plan.preprocessing.columns if c.width]
    held = 0 if plan.test is None else len(plan.test.ids)
    what = {"classes": f"one of {target.outputs} classes", "amount": "an amount", "count": "a count"}[target.task]
    shape = "x".join(str(size) for size in plan.preprocessing.shape)
    lines = [f"data: {len(plan.train.ids)} rows to train on, {held} to test with; {target.name} is {what}"]
    lines.append(
        f"inputs: {counted(len(used), 'column')} as {counted(shape, 'number')}" if used else f"inputs: {shape} numbers"
    )
    for column in plan.preprocessing.columns:
        if column.kind == "ignored" and getattr(column, "reason", "") not in ("as asked", "beside pictures", ENCODED):
            lines.append(f"  without {column.name}: {getattr(column, 'reason', '')}")
    return "\n".join(lines)


def _tell(run: RunFolder, plan: Plan, as_json: bool) -> None:
    if as_json:
        about = {"run": str(run.folder), "status": run.status, "config": run.config, "metrics": run.metrics}
        dump(about | {name: run.content[name] for name in ("rows", "steps", "seconds", "baseline", "notes")})
        return
    notes(plan.notes)
    config, held = run.config, run.record.rows.test
    took = f"{run.record.steps} steps in {run.record.seconds:.1f} s"
    say(f"trained: {config['model']} with {config['method']}, {took}")
    if held:
        say(f"on {held} held-out rows: {figures(run.metrics)}")
        for name, found in run.record.baseline.items():
            say(f"  a {name} on the same rows: {figures(found)}")
    if run.status == "interrupted":
        say(f"stopped early; the run is usable, and goes on with: posterity fit --resume --out {run.folder}")
    say(f"run: {run.folder}")


def _said(ctx: typer.Context, name: str) -> bool:
    """Whether the user typed an option about training: where to, and how to answer, do not."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE" and name not in ("out", "resume", "as_json")


def _same(plan: Plan, asked: dict[str, Any]) -> None:
    """Raise where a training to resume is under way with other settings than those that are asked for."""
    from posterity.runs.data import DataSource
    from posterity.runs.locating import held_out

    config, data, source = plan.config, plan.data, plan.data.source
    before = {**vars(source), **vars(data), **vars(config), **config.options, "task": plan.preprocessing.target.task}
    before |= {"data": source.sha256, "test": _told_apart(data.test)}
    del before["embeddings"]  # what became of them; like texts and columns left out, they are in the preprocessing
    written = {"data": source.path, "test": data.held_out()}
    readers: dict[str, Any] = {
        "hidden": widths,
        "data": lambda path: DataSource.of(path, plan.folder).sha256,
        "test": lambda test: _told_apart(held_out(test, plan.folder, config.seed, None, None)),
    }
    options = _options(asked.pop("option", None))
    for name, value in {**asked, **options}.items():
        if name not in before:
            raise InvalidInput(
                f"{name}: expected it left out beside --resume, got {value}; a resumed training keeps its settings"
            )
        if (readers[name](value) if name in readers else value) != before[name]:
            wanted = written.get(name, before[name])
            raise InvalidInput(f"{name}: expected {wanted} as in the training to resume, got {value}")


def _told_apart(test: dict[str, Any]) -> dict[str, Any]:
    """The held-out data, wherever the file is now."""
    return {"sha256": test["source"]["sha256"]} if "source" in test else test


def _options(given: list[str] | None) -> dict[str, Any]:
    from posterity.cli._output import pairs

    if not given:
        return {}
    from posterity.merging.recipes import read_value

    return {name: read_value(value) for name, value in pairs("--option", given)}


def widths(text: str) -> tuple[int, ...]:
    """Widths of layers, written with commas."""
    try:
        return tuple(int(width) for width in text.split(","))
    except ValueError:
        raise expected("hidden", "widths such as 64,64", text[:40]) from None
