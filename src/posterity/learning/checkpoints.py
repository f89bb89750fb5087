"""Checkpoints of a training run: nested state as one record of JSON and tensors, replaced all at once."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from posterity.errors import InvalidInput, RefusedFile, expected
from posterity.files import load_record, save_record
from posterity.trees import Tree

VERSION = 1
SECONDS = 10.0  # between two checkpoints, unless steps are counted
_NAME = "checkpoint"
_TENSOR = "tensor:"


@dataclass
class Checkpoints:
    """The newest checkpoint of a run, in a folder.

    Args:
        folder: Its folder.
        settings: What the run was asked to do, in words: a run that was asked for something else cannot go on here.
        every: Number of steps between two checkpoints; None for one every `SECONDS`.
    """

    folder: Path
    settings: Mapping[str, str]
    every: int | None = None
    saved: float = field(default_factory=time.monotonic)  # when the last one was written, or we began

    def due(self, step: int) -> bool:
        """Whether a checkpoint follows this step."""
        if self.every is not None:
            return step % self.every == 0
        return time.monotonic() - self.saved > SECONDS

    def save(self, state: Mapping[str, Any]) -> None:
        """Replace the checkpoint."""
        self.saved = time.monotonic()
        tensors: Tree = {}
        content = {"settings": dict(self.settings), "state": _pack(state, "", tensors)}
        save_record(self.folder, _NAME, version=VERSION, content=content, tensors=tensors)

    def load(self) -> dict[str, Any]:
        """The state, if the checkpoint is whole and was made under the same settings."""
        record = load_record(self.folder, _NAME, version=VERSION)
        kept = record.content["settings"]
        for name in sorted({*kept, *self.settings}):
            before, now = kept.get(name), self.settings.get(name)
            if before != now:
                raise InvalidInput(f"{name}: expected {before} as in the checkpoint to resume, got {now}")
        return _unpack(record.content["state"], record.tensors)

    def open(self, resume: bool) -> dict[str, Any] | None:
        """The state to resume from; an error where there is none, or where a new run would overwrite an old one."""
        if resume:
            if not holds_checkpoint(self.folder):
                raise RefusedFile(f"{self.folder}: expected a checkpoint to resume, got none")
            return self.load()
        if holds_checkpoint(self.folder):
            raise expected("checkpoint", "an empty folder, or resume=True", f"{self.folder}, which holds a checkpoint")
        return None


def holds_checkpoint(folder: Path) -> bool:
    """Whether there is anything to resume in a folder."""
    return (folder / f"{_NAME}.json").exists()


def _pack(value: Any, path: str, tensors: Tree) -> Any:
    """The value as JSON, its tensors set aside under their paths."""
    if isinstance(value, Tensor):
        tensors[path] = value
        return f"{_TENSOR}{path}"
    if isinstance(value, Mapping):
        return {str(key): _pack(entry, f"{path}/{key}", tensors) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_pack(entry, f"{path}/{i}", tensors) for i, entry in enumerate(value)]
    return value


def _unpack(value: Any, tensors: Tree) -> Any:
    if isinstance(value, str) and value.startswith(_TENSOR):
        return tensors[value.removeprefix(_TENSOR)]
    if isinstance(value, dict):
        return {key: _unpack(entry, tensors) for key, entry in value.items()}
    if isinstance(value, list):
        return [_unpack(entry, tensors) for entry in value]
    return value
