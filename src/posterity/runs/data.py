"""The data of a run: which files, which rows of them train and which test, and what was changed since."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from posterity.cells import counted
from posterity.errors import InvalidInput, RefusedFile, expected, renamed
from posterity.files import sha256
from posterity.runs.columns import as_text, from_json
from posterity.runs.encoding import Encoding
from posterity.runs.readers import Rows, picture_files, read_rows, with_block

SPLITS = ("train", "test")
_RARE = 30  # rows of a class below which chance alone would split them unfairly
_CLASSES = 20  # different values of a target up to which they may be classes


class Selection(NamedTuple):
    """Some rows, all with a target, and their ids."""

    rows: Rows
    ids: Tensor


@dataclass(frozen=True)
class DataSource:
    """A file or folder of data, and what it hashed to when it was first read.

    Args:
        path: Where it lay.
        relative: The same, seen from the folder of the run: both may move together.
        sha256: Hash of the file, or of the names and hashes of all pictures of the folder.
        inputs: For npz: the array of inputs.
        size: For pictures: the size they are brought to.
        embeddings: Another source, of vectors for the rows.
    """

    path: str
    relative: str
    sha256: str
    inputs: str | None = None
    size: int | None = None
    embeddings: dict[str, Any] | None = None

    @classmethod
    def of(
        cls,
        path: Path,
        run: Path,
        *,
        inputs: str | None = None,
        size: int | None = None,
        embeddings: Path | None = None,
    ) -> DataSource:
        """A source in its present state."""
        if not path.exists():
            raise InvalidInput(f"data: expected a file or folder, got {path}, which is not there")
        refuse_hiding(path, run)
        vectors = None if embeddings is None else vars(cls.of(embeddings, run))
        relative = os.path.relpath(path.absolute(), run.absolute())
        return cls(str(path.absolute()), relative, hash_of(path), inputs, size, vectors)

    def read(
        self, run: Path, target: str, like: tuple[int, ...] | None = None, encoding: Encoding | None = None
    ) -> Rows:
        """The rows, if the source is still what it was; pictures in the form of others, see `read_rows`."""
        path = self.locate(run)
        if encoding is not None and self.embeddings is None:
            return encoding.read(path, target, self.sha256, run)
        rows = read_rows(path, self.inputs, self.size, target, like)
        if self.embeddings is None:
            return rows
        vectors = DataSource(**self.embeddings)
        return with_block(rows, vectors.locate(run), vectors.inputs)

    def seen_from(self, run: Path, other: Path) -> DataSource:
        """The same source for a run in another folder."""
        relative = os.path.relpath(run.absolute() / self.relative, other.absolute())
        vectors = None if self.embeddings is None else vars(DataSource(**self.embeddings).seen_from(run, other))
        return replace(self, relative=relative, embeddings=vectors)

    def locate(self, run: Path) -> Path:
        """The present path of the source."""
        found = [path for path in (Path(self.path), run / self.relative) if path.exists()]
        for path in found:
            if hash_of(path) == self.sha256:
                return path
        if found:
            got = "a folder of pictures" if found[0].is_dir() else "a file"
            raise RefusedFile(f"{found[0]}: expected the data that the run was made from, got {got} that has changed")
        raise RefusedFile(f"{self.path}: expected the data that the run was made from, got no such file; put it back")


@dataclass(frozen=True)
class Data:
    """The data of a run.

    Args:
        source: Where the rows are.
        target: The column to predict.
        id_column: The column of ids; without one, ids are positions in the file.
        test: Which rows are held out: {"fraction", "seed", "rare"} (whether classes of few rows get a fair share),
            {"column", "value"}, {"source"}, or nothing.
        added: Sources that joined the training rows later, each with the first id of its rows.
        removed: Ids of training rows that were dropped.
        relabelled: New targets by id, as text.
        encoding: How texts or pictures become vectors, see `Encoding`; None where no frozen network does it.
    """

    source: DataSource
    target: str
    id_column: str | None = None
    test: dict[str, Any] = field(default_factory=dict)
    added: tuple[dict[str, Any], ...] = ()
    removed: tuple[int, ...] = ()
    relabelled: dict[str, str] = field(default_factory=dict)
    encoding: Encoding | None = None

    def select(self, run: Path, split: str, notes: list[str] | None = None) -> Selection:
        """The rows of a split that have a target."""
        if split not in SPLITS:
            raise expected("split", f"one of {SPLITS}", split)
        own = self._read(run, self.source)
        held_out = self._held_out(own.rows)
        if split == "test":
            if "source" not in self.test:
                return self._known(own, notes, held_out)
            return self._known(self._read(run, DataSource(**self.test["source"]), len(own.ids), own), notes)
        parts = [self._known(own, notes, ~held_out)]
        parts += [self._known(self._read(run, DataSource(**a["source"]), a["first"], own), notes) for a in self.added]
        return self._changed(_joined(parts))

    def place(self, run: Path, ids: pd.Series[int]) -> tuple[str, pd.Series[int]]:
        """What held-out rows are known by beyond this run: the hash of their file, and their positions in it.

        Ids of a column identify rows in any file.
        """
        if self.id_column is not None:
            return "", ids
        if "source" not in self.test:
            return self.source.sha256, ids
        return self.test["source"]["sha256"], ids - len(self._read(run, self.source).ids)

    def plus(self, source: DataSource, run: Path) -> Data:
        """The same with another source among the training rows, its ids beyond all that there have ever been."""
        everything = [self._read(run, self.source)]
        if "source" in self.test:
            everything.append(self._read(run, DataSource(**self.test["source"]), len(everything[0].ids)))
        everything += [self._read(run, DataSource(**a["source"]), a["first"]) for a in self.added]
        first = 1 + max(int(part.ids.max()) for part in everything)
        return replace(self, added=(*self.added, {"source": vars(source), "first": first}))

    def hashes(self) -> set[str]:
        """Hashes of all files that rows come from."""
        entries = [*self.added, *([self.test] if "source" in self.test else [])]
        return {self.source.sha256, *(entry["source"]["sha256"] for entry in entries)}

    def places(self, run: Path) -> list[Path]:
        """The present paths of the files and folders that rows come from."""
        entries = [*self.added, *([self.test] if "source" in self.test else [])]
        return [source.locate(run) for source in (self.source, *(DataSource(**entry["source"]) for entry in entries))]

    def seen_from(self, run: Path, other: Path) -> Data:
        """The same data for a run in another folder."""

        def moved(entry: dict[str, Any]) -> dict[str, Any]:
            return entry | {"source": vars(DataSource(**entry["source"]).seen_from(run, other))}

        return replace(
            self,
            source=self.source.seen_from(run, other),
            test=moved(self.test) if "source" in self.test else self.test,
            added=tuple(moved(entry) for entry in self.added),
        )

    def changed(self, removed: list[int], relabelled: dict[int, str]) -> Data:
        """The same without some rows, and with other targets for others."""
        gone = tuple(sorted({*self.removed, *removed}))
        labels = self.relabelled | {str(i): label for i, label in relabelled.items()}
        return replace(self, removed=gone, relabelled={i: label for i, label in labels.items() if int(i) not in gone})

    def held_out(self) -> str:
        """Which rows are held out, as `posterity fit --test` takes it."""
        if "source" in self.test:
            return str(self.test["source"]["path"])
        return (
            f"{self.test['column']}={self.test['value']}"
            if "column" in self.test
            else str(self.test.get("fraction", 0))
        )

    def settings(self) -> dict[str, Any]:
        """What is needed to build it again."""
        encoding = None if self.encoding is None else vars(self.encoding)
        return {**vars(self), "source": vars(self.source), "encoding": encoding}

    @classmethod
    def restored(cls, settings: dict[str, Any]) -> Data:
        """The data that `settings` describes."""
        try:
            about = settings.get("encoding")
            encoding = None if about is None else Encoding(**about)
            return cls(**{**from_json(settings), "source": DataSource(**settings["source"]), "encoding": encoding})
        except (KeyError, TypeError) as why:
            raise RefusedFile(f"run: expected a description of its data, got one that makes none ({why})") from why

    def _held_out(self, rows: Rows) -> np.ndarray[Any, Any]:
        """Which rows of the source are for testing."""
        held_out = np.zeros(len(rows), dtype=bool)
        if "fraction" in self.test:
            generator = torch.Generator().manual_seed(self.test["seed"])
            order = torch.randperm(len(rows), generator=generator)
            held_out[order[: round(self.test["fraction"] * len(rows))].numpy()] = True
            if self.test.get("rare"):
                self._share_rare(rows, order.numpy(), held_out)
        elif "column" in self.test:
            name, value = self.test["column"], self.test["value"]
            if name not in rows.table:
                raise expected("test", f"a column among {list(rows.table)}", name)
            held_out = np.array(as_text(rows.table[name])) == as_text(pd.Series([value]))[0]
            if not held_out.any() or held_out.all():
                raise InvalidInput(f"test: expected {name} to be {value} in some rows but not in all, got otherwise")
        return held_out

    def _share_rare(self, rows: Rows, order: np.ndarray[Any, Any], held_out: np.ndarray[Any, Any]) -> None:
        """Hold out a fair share of each class with few rows, the first of them training: chance may take all of one."""
        if self.target not in rows.table:
            return  # which is refused elsewhere, with the columns that there are
        labels = np.array(as_text(rows.table[self.target]))
        names, counts = np.unique(labels, return_counts=True)
        if len(names) > _CLASSES:
            return
        for name in names[counts < _RARE]:
            members = order[labels[order] == name]
            held_out[members] = False
            held_out[members[: min(round(self.test["fraction"] * len(members)), len(members) - 1)]] = True

    def _read(self, run: Path, source: DataSource, first: int = 0, own: Selection | None = None) -> Selection:
        """All rows of a source, whether they have a target or not; pictures in the form of the run's own."""
        rows = source.read(run, self.target, None if own is None else own.rows.form, self.encoding)
        return Selection(rows, self._ids(rows, first))

    def _known(
        self, selection: Selection, notes: list[str] | None, where: np.ndarray[Any, Any] | None = None
    ) -> Selection:
        """The rows that have a target, of those in a mask."""
        rows, ids = selection
        if self.target not in rows.table:
            raise expected("target", f"a column among {[str(name) for name in rows.table]}", self.target)
        where = np.ones(len(rows), dtype=bool) if where is None else where
        unknown = where & rows.table[self.target].isna().to_numpy()
        if notes is not None and unknown.any():
            notes.append(f"{self.target}: {counted(int(unknown.sum()), 'row')} without a value left out")
        if notes is not None:
            notes.extend(remark for remark in rows.remarks if remark not in notes)
        chosen = (where & ~unknown).nonzero()[0]
        return Selection(rows.take(chosen), ids[torch.from_numpy(chosen)])

    def _ids(self, rows: Rows, first: int = 0) -> Tensor:
        if self.id_column is None:
            return torch.arange(first, first + len(rows))
        if self.id_column not in rows.table:
            raise expected("id", f"a column among {list(rows.table)}", self.id_column)
        numbers = pd.to_numeric(rows.table[self.id_column], errors="coerce")
        if numbers.isna().any() or bool((numbers != numbers.round()).any()) or bool((numbers.abs() >= 2**63).any()):
            wanted = f"a whole number below 2^63 in every row of {self.id_column!r}"
            raise InvalidInput(f"id: expected {wanted}, got others")
        if numbers.duplicated().any():
            twice = int(numbers[numbers.duplicated()].iloc[0])
            raise InvalidInput(f"id: expected another number in every row of {self.id_column!r}, got {twice} twice")
        return torch.tensor(numbers.to_numpy(dtype=np.int64))

    def _changed(self, selection: Selection) -> Selection:
        """Training rows without those that were dropped, with the targets that were corrected."""
        rows, ids = selection
        if self.relabelled:
            table = rows.table.copy()
            place = {int(i): row for row, i in enumerate(ids.tolist())}
            column = table[self.target].astype(object)
            for i, label in self.relabelled.items():
                column.iloc[place[int(i)]] = label
            rows = replace(rows, table=table.assign(**{self.target: column}))
        if not self.removed:
            return Selection(rows, ids)
        stays = ~torch.isin(ids, torch.tensor(self.removed))
        return Selection(rows.take(stays.nonzero()[:, 0].numpy()), ids[stays])


def _joined(parts: list[Selection]) -> Selection:
    if len(parts) == 1:
        return parts[0]
    ids = torch.cat([part.ids for part in parts])
    if len(ids.unique()) < len(ids):
        raise InvalidInput("id: expected other ids in added data than in the old, got some twice")
    blocks = [part.rows.block for part in parts if part.rows.block is not None]
    if blocks and len(blocks) < len(parts):
        raise InvalidInput("data: expected an array for every added row (--embeddings), got a table alone")
    table = pd.concat([part.rows.table for part in parts], ignore_index=True)
    return Selection(Rows(table, np.concatenate(blocks) if blocks else None), ids)


def refuse_hiding(path: Path, run: Path) -> None:
    """Raise where a run would contain pictures of its data: files in a run are not data."""
    data, place = path.resolve(), run.resolve()
    if data in place.parents and any(place in file.parents for file in picture_files(data)):
        raise InvalidInput(
            f"{run}: expected a folder without pictures of the data, got one with some; choose another --out"
        )


def hash_of(path: Path) -> str:
    """Hash of a file, or of the names and hashes of all pictures of a folder."""
    if path.is_file():
        return sha256(path)
    digest = hashlib.sha256()
    for file in picture_files(path):
        digest.update(f"{file.relative_to(path).as_posix()}\0{sha256(file)}\n".encode())
    return digest.hexdigest()


__getattr__ = renamed(__name__, {"Source": "DataSource"})
