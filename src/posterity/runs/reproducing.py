"""The command that makes a run again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from posterity.runs._folder import RunFolder


def command(run: RunFolder) -> str:
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
    text = encoding.column if encoding.kind == "text" else None
    return [("encoder", encoding.path), ("text", text), ("tune", "lora" if encoding.tuned else None)]


def _adaptation(run: RunFolder) -> str:
    """The command that adapts again, and what has to be decided for it."""
    data, changes, parent = run.dataset, run.record.adaptation, run.record.parent
    assert changes is not None
    assert parent is not None
    given: list[tuple[str, Any]] = [("method", changes["method"]), ("out", run.folder)]
    if changes["added"] and data.added:
        given.append(("add", data.added[-1]["source"]["path"]))
    decided = [f"{i},drop," for i in data.removed] + [f"{i},relabel,{label}" for i, label in data.relabelled.items()]
    if not decided:
        return _line("adapt", parent["path"], given=given)
    line = _line("adapt", parent["path"], given=[*given, ("decisions", "decisions.csv")])
    return "\n".join([line, "", "# decisions.csv", "id,decision,label", *decided])


def _line(*words: Any, given: Sequence[tuple[str, Any]]) -> str:
    options = [word for name, value in given if value is not None for word in (f"--{name.replace('_', '-')}", value)]
    return shlex.join(str(word) for word in ("posterity", *words, *options))
