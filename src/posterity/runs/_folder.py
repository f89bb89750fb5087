"""`RunFolder`: a trained model on disk, with everything that later questions need."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from posterity import __version__
from posterity.errors import InvalidInput, RefusedFile
from posterity.files import read_tensors, write_bytes, write_tensors
from posterity.memory import MemoryMap, memory_map
from posterity.memory import store as maps
from posterity.posterior import FittedModel, Posterior
from posterity.runs.data import Data, Selection, hash_of
from posterity.runs.networks import network
from posterity.runs.preprocessing import Examples, Preprocessing
from posterity.runs.readers import Rows, read_rows, with_block
from posterity.runs.record import RunRecord
from posterity.runs.store import Generation, ListedFile, Listing, check_file, generation, read_list
from posterity.runs.tables import OLDER, SUFFIX, TEXT, kinds, packed, read_table

_LABELS = ("label", "prediction", "loo_prediction", "suspected_label")  # columns that name classes


@dataclass(frozen=True, eq=False, repr=False)
class RunFolder:
    """A run: configuration, data, model, posterior, history and tables, in one folder.

    What is read is checked against the hashes in `run.json`; what is written becomes visible all at once. A handle
    shows the run as it was when it was opened; `updated` writes, and returns a handle on the new state.

    Args:
        folder: Its folder.
        content: Everything in `run.json` except the list of files.
        files: The files, by name.

    Examples:
        >>> run = RunFolder.open("flowers")  # doctest: +SKIP
        >>> run.metrics["accuracy"], len(run.data("train").ids)  # doctest: +SKIP
        (0.97, 120)
    """

    folder: Path
    content: Mapping[str, Any]
    files: Mapping[str, ListedFile]

    def __repr__(self) -> str:
        return f"RunFolder({str(self.folder)!r}, {self.config.get('method')}, {self.status})"

    @classmethod
    def open(cls, folder: str | Path) -> RunFolder:
        """Open a run; a folder that is none, or whose list is damaged, is refused with the reason."""
        listing = read_list(Path(folder))
        return cls(Path(folder), listing.content, listing.files)

    @classmethod
    def create(
        cls,
        folder: str | Path,
        *,
        model: nn.Module,
        posterior: Posterior,
        record: RunRecord,
        history: list[dict[str, float]],
        tables: Mapping[str, pd.DataFrame] | None = None,
        overwrite: bool = False,
    ) -> RunFolder:
        """Write a run; one that is already there is replaced only with `overwrite`, and stays readable until then.

        Args:
            folder: Where to.
            model: The model at its posterior mean.
            posterior: The posterior.
            record: How it was made and how well it does.
            history: One row for each epoch.
            tables: Tables by name ("predictions", "memory", "memory-history").
            overwrite: Replace the run that is there.
        """
        folder = Path(folder)
        if (folder / "run.json").exists() and not overwrite:
            raise InvalidInput(f"{folder}: expected a folder without a run, got one; choose another, or --overwrite")
        with generation(folder, None) as new:
            new.content = {**record.content(), "versions": _versions()}
            place = new.place("model.safetensors")
            write_tensors(place, _state(model))
            new.add("model.safetensors", place)
            place = new.place("posterior")
            posterior.save(place)
            new.add("posterior", place)
            new.write("history.jsonl", "".join(json.dumps(row) + "\n" for row in history).encode())
            _write_tables(new, tables or {})
        return cls.open(folder)

    def updated(
        self,
        content: Mapping[str, Any] | None = None,
        *,
        tables: Mapping[str, pd.DataFrame] | None = None,
        files: Mapping[str, bytes] | None = None,
        memory: MemoryMap | None = None,
    ) -> RunFolder:
        """Write tables, files or a memory map into the run, and return the changed run; nothing else changes."""
        with generation(self.folder, self._now) as new:
            new.content |= content or {}
            _write_tables(new, tables or {})
            for name, data in (files or {}).items():
                new.write(name, data)
            if memory is not None:
                place = new.place("memory-map")
                maps.save(place, memory.columns, memory.reliability, memory.guides)
                new.add("memory-map", place)
        return RunFolder.open(self.folder)

    def keep(self, name: str, data: bytes) -> Path:
        """Write a page into the run, or into the current folder where the run is on a read-only disk; where to.

        The one that is there goes first: a link to it, or a page that has it open, finds the new one under its name.
        """
        try:
            with generation(self.folder, self._now) as new:
                new.drop(name)
            return self.updated(files={name: data}).path(name)
        except RefusedFile:
            raise
        except OSError:
            path = Path(f"{self.folder.name}-{name}")
            write_bytes(path, data)
            return path

    def verify(self) -> None:
        """Hash every file of the run; raise `RefusedFile` for the first that is not as it was written."""
        for entry in self.files.values():
            check_file(self.folder, entry)

    @cached_property
    def record(self) -> RunRecord:
        """How the run was made and how well it does."""
        return RunRecord.of(self.content)

    @property
    def config(self) -> dict[str, Any]:
        """How the run was made: model, method, seeds, and every setting of the training."""
        return dict(self.record.config)

    @property
    def status(self) -> str:
        """Either "finished", or "interrupted": stopped by Ctrl-C, usable, and `posterity fit --resume` goes on."""
        return self.record.status

    @property
    def metrics(self) -> dict[str, float]:
        """Figures on the held-out rows."""
        return dict(self.record.metrics)

    @property
    def forgets(self) -> bool:
        """Whether the run, or one that it was adapted from, has forgotten a part of its rows: those count for less."""
        found = self.record.adaptation or {}
        return bool(found.get("forgotten", found.get("forget")))

    @cached_property
    def preprocessing(self) -> Preprocessing:
        """The preprocessing of every row."""
        return Preprocessing.restored(self.record.preprocessing)

    @cached_property
    def dataset(self) -> Data:
        """Which rows of which files the run was made from."""
        return Data.restored(self.record.data)

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes; None for amounts and counts."""
        return getattr(self.preprocessing.target, "names", None)

    def path(self, name: str) -> Path:
        """The path of a file of the run ("report.html"), after a check of its hash."""
        if name not in self.files:
            raise RefusedFile(f"{self.folder}: expected a run with {name}, got one without")
        return check_file(self.folder, self.files[name])

    def has(self, table: str) -> bool:
        """Whether the run has a table, or a file, of this name."""
        return any(name in self.files for name in (table, table + SUFFIX, table + OLDER))

    def table(self, name: str) -> pd.DataFrame:
        """A table of the run: "predictions", "memory", "memory-history" or "folds"."""
        ending = next((e for e in (SUFFIX, OLDER) if name + e in self.files), None)
        if ending is None:
            raise RefusedFile(f"{self.folder}: expected a run with a table {name!r}, got one without")
        columns = self.content.get("tables", {}).get(name)
        if columns is None:  # CSV of an earlier version, which did not say what its columns hold
            columns = {} if self.class_names is None else dict.fromkeys(_LABELS, TEXT)
        return read_table(self.path(name + ending), columns)

    @property
    def predictions(self) -> pd.DataFrame:
        """Predictions of the held-out rows."""
        return self.table("predictions")

    @property
    def memory(self) -> pd.DataFrame:
        """The memory map as a table, in the terms of the data."""
        return self.table("memory")

    @property
    def memory_history(self) -> pd.DataFrame:
        """Scores of every training row at several epochs: id, epoch, error, leverage, loo_nll, self_influence."""
        return self.table("memory-history")

    @property
    def history(self) -> list[dict[str, float]]:
        """A row for each epoch of training."""
        return [json.loads(line) for line in self.path("history.jsonl").read_text(encoding="utf-8").splitlines()]

    def model(self) -> nn.Module:
        """The model at its posterior mean, in evaluation mode, built anew."""
        config, target = self.config, self.preprocessing.target
        about = {name: config[name] for name in ("hidden", "seed", "dropout")}
        made = network(config["model"], self.preprocessing.shape, target.outputs, **about)
        tensors = read_tensors(self.path("model.safetensors"))
        there = {name: t for name, t in made.state_dict().items() if isinstance(t, torch.Tensor)}
        for name in {**there, **tensors}:
            if name not in tensors or name not in there or tensors[name].shape != there[name].shape:
                found = tuple(there[name].shape) if name in there else "none"
                raise RefusedFile(
                    f"{self.folder}: expected the model {config['model']} that was trained, got another "
                    f"(its {name!r} has shape {found})"
                )
        made.load_state_dict(tensors, strict=False)
        return made.eval()

    @cached_property
    def posterior(self) -> Posterior:
        """The posterior."""
        place = self._part("posterior", "posterior.json")
        if place is None:
            raise RefusedFile(f"{self.folder}: expected a run with a posterior, got one without")
        return Posterior.load(place)

    def read(self, path: Path, embeddings: Path | None = None) -> Rows:
        """New rows, in the format of the training data; pictures are brought to its size and colours."""
        source, block, encoding = self.dataset.source, self.preprocessing.block, self.dataset.encoding
        if encoding is not None and embeddings is None:
            return encoding.read(path, self.dataset.target, hash_of(path) if path.exists() else "", self.folder)
        like = None if block is None else block.shape
        rows = read_rows(path, source.inputs, source.size, self.dataset.target, like)
        return rows if embeddings is None else with_block(rows, embeddings, None)

    def select(self, split: str = "train") -> Selection:
        """The rows of a split, unchanged, with their ids; corrections and additions included."""
        found = self.dataset.select(self.folder, split)
        return self.preprocessing.known(found, []) if split == "test" else found

    def data(self, split: str = "train") -> Examples:
        """The examples of a split, read anew from the source: (inputs, targets, ids)."""
        rows, ids = self.select(split)
        return self.preprocessing.examples(rows, ids, [])

    def records(self, split: str = "train") -> pd.DataFrame:
        """The rows of a split in readable form, with an id before the columns of the source."""
        rows, ids = self.select(split)
        table = rows.table.drop(columns=["id"], errors="ignore")
        table.insert(0, "id", ids.numpy())
        return table

    def memory_map(self) -> MemoryMap:
        """The memory map of the training rows: the one that was kept, or a new one."""
        model, data = self.model(), self.data("train")
        kept = self._part("memory-map", "memory_map.json")
        if kept is None:
            return self._tracked(memory_map(model, self.posterior, data))
        columns, reliability, guides = maps.load(kept)
        return MemoryMap(columns, reliability, self.posterior, guides, FittedModel.of(model, self.posterior, data))

    def _now(self) -> Listing:
        """The list on disk, to which other processes may have added; not that of another run."""
        found = read_list(self.folder)
        own = [name for name in self.files if name == "model.safetensors" or name.startswith("posterior/")]
        if any(found.files.get(name) != self.files[name] for name in own):
            raise RefusedFile(f"{self.folder}: expected the run that was opened, got one that was written since; retry")
        return found

    def _part(self, name: str, head: str) -> Path | None:
        """The path of a folder of the run, after a check of all its files; None where its head is missing."""
        whole = {key: self.path(key) for key in self.files if key.startswith(f"{name}/")}
        return whole[f"{name}/{head}"].parent if f"{name}/{head}" in whole else None

    def _tracked(self, found: MemoryMap) -> MemoryMap:
        """The map with what was seen out of fold, and during training: self-influence averaged over some epochs."""
        more: dict[str, pd.Series[Any]] = {}
        if self.has("memory-history"):
            more["tracked_self_influence"] = self.memory_history.groupby("id")["self_influence"].mean()
        if self.has("folds"):
            more |= {str(name): values for name, values in self.table("folds").set_index("id").items()}
        columns = found.columns
        for name, values in more.items():
            known = columns["id"].map(values)
            if not known.isna().any():
                columns = columns.assign(**{name: known.to_numpy()})
        return MemoryMap(columns, found.reliability, found.posterior, found.guides, found.trained)


def _state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Every tensor of a model once; tied ones are filled by the one they are tied to."""
    stored = model.state_dict(keep_vars=True)
    return {name: t.detach() for name, t in stored.items() if isinstance(t, torch.Tensor)}


def _write_tables(new: Generation, tables: Mapping[str, pd.DataFrame]) -> None:
    for name, table in tables.items():
        new.drop(name + OLDER)
        new.drop(name + SUFFIX)
        new.write(name + SUFFIX, packed(table, SUFFIX))
        new.content["tables"] = {**new.content.get("tables", {}), name: kinds(table)}


def _versions() -> dict[str, str]:
    return {
        "posterity": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "pandas": pd.__version__,
        "python": platform.python_version(),
    }
