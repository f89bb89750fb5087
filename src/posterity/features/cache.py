"""Features on disk: written part by part while they are computed, so that an interrupted run goes on where it was."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from posterity.errors import RefusedFile
from posterity.features._encoder import Encoder, Matrix
from posterity.files import read_sealed, read_tensors, sha256, write_sealed, write_tensors
from posterity.progress import track

FOLDER = "features"  # in the folder of a run
INDEX = "parts.json"


class Features(NamedTuple):
    """Vectors, one row for each item, and what is unusual about the items."""

    vectors: Matrix
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class Cache:
    """A folder of features, one subfolder for each (encoder, source of items).

    Args:
        folder: Its path; made when something is written.

    Examples:
        >>> Cache(Path("flowers-run") / FOLDER).features(encoder, texts, "their hash")  # doctest: +SKIP
    """

    folder: Path

    def kept(self, fingerprint: str, source: str, count: int) -> Features | None:
        """The vectors of all items, if they have all been computed before: then the encoder is not needed."""
        place = self._place(fingerprint, source, count)
        index = _index(place)
        parts = [_read(place, listed) for listed in index["parts"]]
        whole = [part for part in parts if part is not None]
        if index["remarks"] is None or len(whole) < len(parts):
            return None
        return Features(np.concatenate(whole), tuple(index["remarks"]))

    def features(self, encoder: Encoder, items: Sequence[Any], source: str) -> Features:
        """The vectors of all items; those that are kept already are not computed again.

        Args:
            encoder: What computes them.
            items: Texts, or paths of pictures; at least one.
            source: An identifier of these items, such as the hash of their file.
        """
        place = self._place(encoder.fingerprint, source, len(items))
        kept = _index(place)["parts"]
        starts = range(0, len(items), encoder.part)
        parts = []
        for i, start in enumerate(track(starts, f"reading {encoder.kind}", len(starts))):
            part = _read(place, kept[i]) if i < len(kept) else None
            if part is None:
                part = encoder.encode(items[start : start + encoder.part])
                kept = [*kept[:i], _written(place, i, part)]
                write_sealed(place / INDEX, {"parts": kept, "remarks": None})
            parts.append(part)
        found = Features(np.concatenate(parts), tuple(encoder.remarks(items)))
        write_sealed(place / INDEX, {"parts": kept, "remarks": list(found.remarks)})
        return found

    def carried(self, folder: Path) -> None:
        """Copy what is kept to another folder: a run that is made from this one has the same items."""
        if self.folder.is_dir() and self.folder.resolve() != folder.resolve():
            shutil.copytree(self.folder, folder, dirs_exist_ok=True)

    def _place(self, fingerprint: str, source: str, count: int) -> Path:
        return self.folder / hashlib.sha256(f"{fingerprint} {source} {count}".encode()).hexdigest()[:24]


def _index(place: Path) -> dict[str, Any]:
    """Names and hashes of the parts that are there; remarks once all are. A damaged index counts as none."""
    try:
        return {"parts": [], "remarks": None} | read_sealed(place / INDEX)
    except RefusedFile:
        return {"parts": [], "remarks": None}


def _written(place: Path, number: int, part: Matrix) -> list[str]:
    place.mkdir(parents=True, exist_ok=True)
    name = f"{number:05d}.safetensors"
    return [name, write_tensors(place / name, {"features": torch.from_numpy(part)})]


def _read(place: Path, listed: list[str]) -> Matrix | None:
    """A part, if it is byte for byte what was written."""
    path = place / Path(listed[0]).name
    if not path.is_file() or sha256(path) != listed[1]:
        return None
    return read_tensors(path)["features"].numpy()
