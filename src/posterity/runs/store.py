"""The files of a run: named, hashed, listed in `run.json`, and replaced all at once by renaming that list.

A new version of a file lies beside the old one, under its plain name where that is free and a numbered one otherwise
(`memory.parquet`, `memory.2.parquet`). Whoever is killed at any moment leaves the old list or the new one, and every
file of it. What killed writers left behind is swept by the next one.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from posterity.errors import InvalidInput, RefusedFile
from posterity.files import read_sealed, sha256, write_bytes, write_sealed

VERSION = 1
LIST = "run.json"
NAMES = (
    "model.safetensors",
    "posterior",
    "history.jsonl",
    "predictions.parquet",
    "predictions.csv",
    "memory.parquet",
    "memory.csv",
    "memory-history.parquet",
    "memory-history.csv",
    "memory-map",
    "report.html",
)


@dataclass(frozen=True)
class Entry:
    """A file as the list has it: where it lies in the folder, how long it is, what it hashes to."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Listing:
    """What `run.json` says."""

    content: dict[str, Any]
    files: dict[str, Entry]


def read_list(folder: Path) -> Listing:
    """The list of a folder, refused unless every byte is as it was written."""
    path = folder / LIST
    if not path.is_file():
        raise RefusedFile(f"{folder}: expected a run, got {_instead(folder)}")
    value = read_sealed(path)
    if value.get("format") != "run" or not isinstance(value.get("content"), dict):
        raise RefusedFile(f"{path}: expected the list of a run, got another file")
    if type(value.get("version")) is not int or not 1 <= value["version"] <= VERSION:
        raise RefusedFile(f"{path}: expected version {VERSION} or older, got {value.get('version')}; update posterity")
    try:
        files = {name: Entry(**entry) for name, entry in value["files"].items()}
    except (KeyError, TypeError, AttributeError):
        raise RefusedFile(f"{path}: expected a list of files with sizes and hashes, got none") from None
    for entry in files.values():
        if _outside(entry.path):
            raise RefusedFile(f"{path}: expected files inside the folder, got {entry.path!r}")
    return Listing(value["content"], files)


def check_file(folder: Path, entry: Entry) -> Path:
    """Where a listed file lies, if it is byte for byte what was written."""
    path = folder / entry.path
    if path.is_symlink() or not path.is_file():
        raise RefusedFile(f"{path}: expected a file of the run, got none; the run is damaged or was written anew")
    size = path.stat().st_size
    if size != entry.size:
        raise RefusedFile(f"{path}: expected {entry.size} bytes, got {size}; the file is damaged")
    if sha256(path) != entry.sha256:
        raise RefusedFile(f"{path}: expected sha256 {entry.sha256}, got another; the file is damaged")
    return path


@dataclass
class Generation:
    """The next state of a folder; nobody sees it before it is complete."""

    folder: Path
    content: dict[str, Any]
    files: dict[str, Entry] = field(default_factory=dict)

    def place(self, name: str) -> Path:
        """A free path for a new version of a file or folder."""
        plain = PurePosixPath(name)
        number, path = 1, self.folder / name
        while path.exists():
            number += 1
            path = self.folder / f"{plain.stem}.{number}{plain.suffix}"
        self.drop(name)
        return path

    def add(self, name: str, path: Path) -> None:
        """List what was written to a path that `place` gave: a file, or every file of a folder."""
        for part in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if part.is_file():
                key = name if part == path else f"{name}/{part.relative_to(path).as_posix()}"
                relative = part.relative_to(self.folder).as_posix()
                self.files[key] = Entry(relative, part.stat().st_size, sha256(part))

    def write(self, name: str, data: bytes) -> None:
        """Write and list a file."""
        path = self.place(name)
        write_bytes(path, data)
        self.add(name, path)

    def drop(self, name: str) -> None:
        """List a file or folder no longer."""
        self.files = {key: entry for key, entry in self.files.items() if key != name and not key.startswith(f"{name}/")}


@contextlib.contextmanager
def generation(folder: Path, base: Listing | None) -> Iterator[Generation]:
    """Write into a folder, and switch to what was written at the end; after an error everything is as it was.

    Args:
        folder: The folder of the run, made if it is not there.
        base: The list to start from; None for a new run in place of any that is there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        _sweep(folder)
        new = Generation(folder, dict(base.content) if base else {}, dict(base.files) if base else {})
        try:
            yield new
            files = {name: vars(entry) for name, entry in new.files.items()}
            write_sealed(folder / LIST, {"format": "run", "version": VERSION, "content": new.content, "files": files})
        finally:
            _sweep(folder)


@contextlib.contextmanager
def locked(folder: Path, name: str = ".lock") -> Iterator[None]:
    """Keep other writers out; the lock goes with the process that holds it, however that ends."""
    try:
        import fcntl
    except ImportError:  # systems without such locks trust their users to write one at a time
        yield
        return
    handle = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidInput(f"{folder}: expected no other writer, got a process that is writing there") from None
        yield
    finally:
        os.close(handle)


def _sweep(folder: Path) -> None:
    """Remove what the list does not name, as far as it is ours."""
    listed: Mapping[str, Entry] = {}
    if (folder / LIST).exists():
        try:
            listed = read_list(folder).files
        except RefusedFile:
            return  # damaged: whatever is there may be needed to repair it
    kept = {PurePosixPath(entry.path).parts[0] for entry in listed.values()}
    for path in folder.iterdir():
        if path.name in kept or not _ours(path.name):
            continue
        with contextlib.suppress(OSError):  # the next sweep gets what is held open now
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _ours(name: str) -> bool:
    """Whether a file, or what was to become one, belongs to a run but is not its list."""
    unfinished = re.fullmatch(r"\.(.+)\.[0-9a-f]{12}\.tmp", name)
    if unfinished:
        name = unfinished[1]
    elif name == LIST:
        return False
    return name == LIST or re.sub(r"\.\d+(?=\.[a-z]+$|$)", "", name) in NAMES


def _outside(path: str) -> bool:
    parts = PurePosixPath(path)
    return parts.is_absolute() or ".." in parts.parts or "\\" in path or not parts.parts


def _instead(folder: Path) -> str:
    """What is there where a run should be."""
    if (folder / "training.json").exists():
        return f"a training that was not finished: posterity fit --resume --out {folder}"
    if folder.is_dir():
        return f"a folder without {LIST}"
    return "a file" if folder.exists() else "nothing there"
