"""`posterity report`: one page about a run."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posterity.cli._output import Json, dump, say

if TYPE_CHECKING:
    from posterity.app.report import Contents, HeldOut
    from posterity.app.source import Source
    from posterity.runs import RunFolder
    from posterity.runs.effects import Effect


def report(run: Annotated[Path, typer.Argument(help="Folder of the run.")], as_json: Json = False) -> None:
    """Write report.html into the run: what was learnt, how far to trust it, which rows look wrong; one whole page."""
    from posterity.app.report import write_report
    from posterity.runs import RunFolder

    opened = RunFolder.open(run)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        write_report(contents(opened), page)
        path = _kept(opened, page.read_bytes())
    if as_json:
        dump({"run": str(run), "report": str(path)})
    else:
        say(f"report: {path}")


def _kept(run: RunFolder, page: bytes) -> Path:
    """Where the page lies: in the run, or in the current folder where the run is on a read-only disk."""
    from posterity.errors import RefusedFile
    from posterity.files import write_bytes

    try:
        return run.updated(files={"report.html": page}).path("report.html")
    except RefusedFile:
        raise
    except OSError:
        path = Path(f"{run.folder.name}-report.html")
        write_bytes(path, page)
        return path


def contents(run: RunFolder) -> Contents:
    """What a run has to say about itself; without its data, or without a Gaussian posterior, there is no memory."""
    from posterity.app.from_run import from_run
    from posterity.app.report import Contents
    from posterity.errors import PosterityError

    source: Source | None = None
    warning = ""
    try:
        source = from_run(run.folder)
        warning = source.reliability
    except PosterityError as why:
        warning = str(why)
    target, rows, config = run.preprocessing.target, run.record.rows._asdict(), run.config
    used = sum(column.width > 0 for column in run.preprocessing.columns)
    return Contents(
        title=run.folder.resolve().name,
        lead=f"{target.name} from {Path(run.dataset.source.path).name}, learnt from {rows['train']} rows.",
        facts={
            "target": f"{target.name} ({target.task})",
            "inputs": f"{used} columns" if used else "x".join(str(size) for size in run.preprocessing.shape),
            "model": config["model"],
            "method": config["method"],
            "rows to train and to test": f"{rows['train']} and {rows['test']}",
            "seed": config["seed"],
            "status": run.status,
        },
        held_out=_held_out(run, source),
        memory=None if source is None else source.table,
        ranking="loo_nll" if source is None else source.ranking,
        preview=None if source is None else source.preview,
        class_names=run.class_names,
        warning=warning,
        effects=_effects(run),
        cost={"steps": run.record.steps, "seconds of training": round(run.record.seconds, 1)},
        reproduce=_command(run),
    )


def _effects(run: RunFolder) -> list[Effect]:
    """What predictions make of columns, where the data are still there."""
    from posterity.errors import PosterityError
    from posterity.runs.effects import effects

    try:
        return effects(run)
    except PosterityError:
        return []


def _held_out(run: RunFolder, source: Source | None) -> HeldOut | None:
    from posterity.app.report import HeldOut

    if not run.has("predictions"):
        return None
    table = run.predictions
    place = {int(i): row for row, i in enumerate(table["id"])}
    preview: Any = None
    if source is not None and source.test_preview is not None:
        show = source.test_preview
        preview = lambda i: show(place[i])  # noqa: E731 (a short question to an outside function)
    ids = table["id"].to_numpy()
    if run.class_names is None:
        columns = {name: table[name].to_numpy(copy=True) for name in ("mean", "std")}
        return HeldOut(ids, table["label"].to_numpy(copy=True), preview=preview, **columns)
    code = {name: k for k, name in enumerate(run.class_names)}
    targets = table["label"].map(code).to_numpy(copy=True)
    return HeldOut(
        ids, targets, probs=table[[f"p({name})" for name in run.class_names]].to_numpy(copy=True), preview=preview
    )


def _command(run: RunFolder) -> str:
    """The command that makes this run again."""
    if run.record.adaptation is not None:
        return _adaptation(run)
    config, data, checkpoint = run.config, run.dataset, run.record.checkpoint
    columns = run.preprocessing.columns
    texts = [column.name for column in columns if column.kind == "text"]
    asked = [column.name for column in columns if getattr(column, "reason", "") == "as asked"]
    given: list[tuple[str, Any]] = [
        ("target", data.target),
        ("task", run.preprocessing.target.task),
        ("test", data.held_out()),
        ("id", data.id_column),
        ("text", texts[0] if len(texts) == 1 and data.encoding is None else None),
        *_encoding(run),
        *(("ignore", name) for name in asked if name not in (data.id_column, data.test.get("column"))),
        ("embeddings", (data.source.embeddings or {}).get("path")),
        ("inputs", data.source.inputs),
        ("size", data.source.size),
        ("hidden", None if config["hidden"] is None else ",".join(str(width) for width in config["hidden"])),
        *((name, config[name]) for name in ("model", "seed")),
    ]
    if checkpoint is None:
        given += [(name, config[name]) for name in ("method", "epochs", "batch_size", "lr", "dropout", "device")]
        given += [("option", f"{name}={value}") for name, value in config["options"].items()]
        return _line("fit", data.source.path, given=given)
    return _line("laplace", checkpoint, data.source.path, given=[*given, *config["options"].items()])


def _encoding(run: RunFolder) -> list[tuple[str, Any]]:
    """The options about a frozen network."""
    encoding = run.dataset.encoding
    if encoding is None:
        return []
    return [("encoder", encoding.path), *([("text", encoding.column)] if encoding.kind == "text" else [])]


def _adaptation(run: RunFolder) -> str:
    """The command that adapts again, and what has to be decided for it."""
    data = run.dataset
    given: list[tuple[str, Any]] = [("method", run.content["adaptation"]["method"]), ("out", run.folder)]
    if run.content["adaptation"]["added"] and data.added:
        given.append(("add", data.added[-1]["source"]["path"]))
    decided = [f"{i},drop," for i in data.removed] + [f"{i},relabel,{label}" for i, label in data.relabelled.items()]
    if not decided:
        return _line("adapt", run.content["parent"]["path"], given=given)
    line = _line("adapt", run.content["parent"]["path"], given=[*given, ("decisions", "decisions.csv")])
    return "\n".join([line, "", "# decisions.csv", "id,decision,label", *decided])


def _line(*words: Any, given: Sequence[tuple[str, Any]]) -> str:
    options = [word for name, value in given if value is not None for word in (f"--{name.replace('_', '-')}", value)]
    return shlex.join(str(word) for word in ("posterity", *words, *options))
