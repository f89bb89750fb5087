"""Texts and pictures of a run as vectors of a frozen network, computed once and kept in its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from posterity.errors import InvalidInput, RefusedFile, expected
from posterity.features import Cache, Encoder, TextEncoder, find_encoder
from posterity.features.cache import FOLDER
from posterity.features.find import advice
from posterity.runs.columns import as_text
from posterity.runs.readers import (
    FILE,
    PICTURES,
    Rows,
    picture_files,
    picture_size,
    picture_table,
    read_rows,
    unreadable,
)

TEXT, PICTURE = "text", "pictures"
ADAPTER = "adapter"  # in the folder of a run: what its encoder was tuned by
SMALL = 64  # pixels of the shorter side, below which a network of its own learns pictures


@dataclass(frozen=True)
class Encoding:
    """How items of a run become vectors.

    Args:
        kind: "text" or "pictures".
        path: Where the weights lay.
        fingerprint: Hash of the encoder: vectors of another one mean something else.
        column: The column of texts; for pictures, that of their names.
        tuned: Whether adapters in the run's folder belong to it.
    """

    kind: str
    path: str
    fingerprint: str
    column: str
    tuned: bool = False

    @classmethod
    def of(cls, encoder: Encoder, column: str = FILE) -> Encoding:
        """The encoding that an encoder makes."""
        tuned = isinstance(encoder, TextEncoder) and encoder.adapter is not None
        return cls(encoder.kind, str(encoder.path.absolute()), encoder.fingerprint, column, tuned)

    def read(self, path: Path, target: str, source: str, run: Path) -> Rows:
        """The rows of a file or folder with a vector for each; `source` is its hash, `run` keeps the vectors."""
        if not path.exists():
            raise InvalidInput(f"data: expected a file or folder, got {path}, which is not there")
        if self.kind == PICTURE:
            return self._pictures(path, target, source, run)
        rows = read_rows(path, target=target)
        if self.column not in rows.table:
            raise expected("text", f"a column among {[str(name) for name in rows.table]}", self.column)
        texts = as_text(rows.table[self.column])
        vectors, remarks = self._features(texts, f"{source} {self.column}", run)
        return Rows(rows.table, vectors, (*rows.remarks, *(f"{self.column}: {remark}" for remark in remarks)))

    def _pictures(self, path: Path, target: str, source: str, run: Path) -> Rows:
        folder, files = (path, picture_files(path)) if path.is_dir() else (path.parent, [path])
        if not files or (path.is_file() and path.suffix.lower() not in PICTURES):
            raise InvalidInput(f"{path}: expected pictures ({', '.join(PICTURES)}), got none")
        vectors, remarks = self._features(files, source, run)
        there = np.atleast_1d(np.isfinite(vectors).all(1))
        if not there.any():
            raise RefusedFile(f"{path}: expected pictures, got {len(files)} files that cannot be read")
        readable = [file for file, fine in zip(files, there) if fine]
        skipped = unreadable(folder, [file for file, fine in zip(files, there) if not fine])
        return Rows(picture_table(folder, readable, target), vectors[there], (*remarks, *skipped))

    def _features(
        self, items: list[str] | list[Path], source: str, run: Path
    ) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.float32]], tuple[str, ...]]:
        cache = Cache(run / FOLDER)
        found = cache.kept(self.fingerprint, source, len(items))
        return found or cache.features(self.encoder(run), items, source)

    def encoder(self, run: Path) -> Encoder:
        """The encoder, where its weights lay or in an installed package; another one is refused."""
        found = find_encoder(self.kind, self.path if Path(self.path).exists() else None)
        if found is None:
            raise RefusedFile(f"{self.path}: expected the weights of the run's encoder, got none; put them back")
        if self.tuned:
            if not (run / ADAPTER).is_dir():
                raise RefusedFile(f"{run / ADAPTER}: expected the adapters of the run's encoder, got none")
            found = TextEncoder(found.path, run / ADAPTER)
        if found.fingerprint != self.fingerprint:
            raise RefusedFile(
                f"{found.path}: expected the encoder that the run was made with, got another; put its weights back"
            )
        return found


def choose(path: Path, text: str | None, given: str | None, pixels: bool) -> tuple[Encoding | None, str]:
    """The encoding of a training set, and a sentence that describes it.

    Args:
        path: The data.
        text: The column of texts, if the user names one.
        given: The path of an encoder, "none" for no encoder, or nothing.
        pixels: Whether the user wants a network on the pictures themselves.
    """
    kind = PICTURE if path.is_dir() or path.suffix.lower() in PICTURES else TEXT
    if given == "none":
        return None, ""
    if kind == TEXT and text is None:
        if given is not None:
            raise expected("encoder", "a column of texts for it (--text)", "none")
        return None, ""
    if kind == PICTURE and given is None and (pixels or _small(path)):
        return None, ""
    encoder = find_encoder(kind, given)
    if encoder is None:
        instead = "words are counted" if kind == TEXT else "a network learns the pixels"
        return None, f"no encoder of {kind}: {instead}. For vectors of a pretrained network: {advice(kind)}"
    return Encoding.of(encoder, text or FILE), f"encoder: {encoder.path}, {encoder.width} numbers for each row"


def _small(path: Path) -> bool:
    """Whether pictures are too small for a network that was trained on photographs."""
    files = picture_files(path) if path.is_dir() else [path]
    sizes = (picture_size(file) for file in files[:20])
    return min(next((size for size in sizes if size is not None), (0, 0))) < SMALL
