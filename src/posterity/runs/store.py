"""The files of a run: named, hashed, listed in `run.json`, and replaced all at once by renaming that list.

A new version of a file is written beside the old one, under its plain name where that is free and a numbered one
otherwise (`memory.csv`, `memory.2.csv`). A process that is killed at any moment leaves the old list or the new one, and
every file of it. A writer notes what it is about to write and to replace: of that, and of nothing else in the folder,
what the list does not name is swept in the end, or by the next writer.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from posterity.errors import InvalidInput, RefusedFile
from posterity.files import make_folder, read_sealed, sha256, taken, write_bytes, write_sealed

VERSION = 1
LIST, TRAINING = "run.json", "training.json"  # of a run, and what is known of a training under way
NOTES = ".writing"  # names of what a writer makes and replaces, one a line
PATIENCE = 30.0  # seconds for another writer, which has all that it writes at hand


@dataclass(frozen=True)
class ListedFile:
    """A file as the list has it: its path in the folder, its length and its hash."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Listing:
    """The content of `run.json`."""

    content: dict[str, Any]
    files: dict[str, ListedFile]


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
        files = {name: ListedFile(**entry) for name, entry in value["files"].items()}
    except (KeyError, TypeError, AttributeError):
        raise RefusedFile(f"{path}: expected a list of files with sizes and hashes, got none") from None
    for entry in files.values():
        if _outside(entry.path):
            raise RefusedFile(f"{path}: expected files inside the folder, got {entry.path!r}")
    return Listing(value["content"], files)


def check_file(folder: Path, entry: ListedFile) -> Path:
    """The path of a listed file, if its hash matches."""
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
    """The next state of a folder; it is invisible until it is complete."""

    folder: Path
    content: dict[str, Any]
    files: dict[str, ListedFile] = field(default_factory=dict)

    def place(self, name: str) -> Path:
        """A free path for a new version of a file or folder."""
        plain = PurePosixPath(name)
        number, path = 1, self.folder / name
        while path.exists():
            number += 1
            path = self.folder / f"{plain.stem}.{number}{plain.suffix}"
        _note(self.folder, [path.name])
        self.drop(name)
        return path

    def add(self, name: str, path: Path) -> None:
        """List what was written to a path that `place` gave: a file, or every file of a folder."""
        for part in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if part.is_file():
                key = name if part == path else f"{name}/{part.relative_to(path).as_posix()}"
                relative = part.relative_to(self.folder).as_posix()
                self.files[key] = ListedFile(relative, part.stat().st_size, sha256(part))

    def write(self, name: str, data: bytes) -> None:
        """Write and list a file."""
        path = self.place(name)
        write_bytes(path, data)
        self.add(name, path)

    def drop(self, name: str) -> None:
        """List a file or folder no longer."""
        self.files = {key: entry for key, entry in self.files.items() if key != name and not key.startswith(f"{name}/")}


@contextlib.contextmanager
def generation(folder: Path, base: Callable[[], Listing] | None) -> Iterator[Generation]:
    """Write into a folder, and switch to what was written at the end; after an error everything is as it was.

    Args:
        folder: The folder of the run, made if it is not there.
        base: Gives the list to start from, once no other process writes; None for a new run in place of an old one.
    """
    make_folder(folder)
    with locked(folder, seconds=PATIENCE):
        start = Listing({}, {}) if base is None else base()
        _sweep(folder)
        _note(folder, [LIST, *(_listed(folder) or ())])
        new = Generation(folder, dict(start.content), dict(start.files))
        try:
            yield new
            files = {name: vars(entry) for name, entry in new.files.items()}
            write_sealed(folder / LIST, {"format": "run", "version": VERSION, "content": new.content, "files": files})
        finally:
            _sweep(folder)


@contextlib.contextmanager
def locked(folder: Path, name: str = ".lock", seconds: float = 0.0) -> Iterator[None]:
    """Keep other writers out; the lock goes with the process that holds it, however that ends.

    Args:
        folder: What they write into.
        name: The file of the lock.
        seconds: How long to wait for another writer.
    """
    try:
        import fcntl
    except ImportError:  # systems without such locks trust their users to write one at a time
        yield
        return
    handle = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        until = time.monotonic() + seconds
        while not taken(handle, fcntl):
            if time.monotonic() >= until:
                raise InvalidInput(f"{folder}: expected no other writer, got a process that is writing there")
            time.sleep(0.02)
        yield
    finally:
        os.close(handle)


def _note(folder: Path, names: Iterable[str]) -> None:
    with open(folder / NOTES, "a", encoding="utf-8") as file:
        file.writelines(f"{name}\n" for name in names)


def _listed(folder: Path) -> set[str] | None:
    """Names of files and folders that the list names, if there is any; None where it is damaged."""
    if not (folder / LIST).exists():
        return set()
    try:
        return {PurePosixPath(entry.path).parts[0] for entry in read_list(folder).files.values()}
    except RefusedFile:
        return None


def _sweep(folder: Path) -> None:
    """Remove what a writer noted and the list does not name; what others keep in the folder is not ours to remove."""
    notes, listed = folder / NOTES, _listed(folder)
    if not notes.exists() or listed is None:  # of a damaged run, whatever is there may be needed to repair it
        return
    kept = {LIST, *listed}
    noted = set(notes.read_text(encoding="utf-8").splitlines())
    for path in folder.iterdir():
        unfinished = re.fullmatch(r"\.(.+)\.[0-9a-f]{12}\.tmp", path.name)
        if path.name in noted - kept or (unfinished and unfinished[1] in noted):
            with contextlib.suppress(OSError):  # held open by a reader, on some systems: it stays
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    notes.unlink()


def _outside(path: str) -> bool:
    parts = PurePosixPath(path)
    return parts.is_absolute() or ".." in parts.parts or "\\" in path or not parts.parts


def _instead(folder: Path) -> str:
    """What is there where a run should be."""
    if (folder / TRAINING).exists():
        return f"a training that was not finished: posterity fit --resume --out {folder}"
    if folder.is_dir():
        return f"a folder without {LIST}"
    return "a file" if folder.exists() else "nothing there"
