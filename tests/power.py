"""Power that fails at any moment: what a disk may hold then, from the calls that a program made to make things last.

Only what was synced is sure to be there. The bytes of a file last from the `fsync` of the file on; names in a folder
(created, renamed, removed) from the `fsync` of the folder on. Of later changes of names any part may have reached the
disk, with or without the bytes behind them. The states tried here are: none of the changes, all of them, each alone,
and all but one; bytes that were never synced are gone.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Names = dict[str, int]  # name in a folder -> file or folder behind it
Change = tuple[int, str]  # a folder, and a name in it that differs from what is sure to be there


class Disk:
    """Watches a folder while a program writes there, and calls `check` with every state after a failure of power.

    Args:
        folder: What is on the disk; everything in it is safe at the start.
        scratch: A folder in which states are laid out.
        check: Gets such a state, and whether the program had returned; raises where it is not as it should be.
    """

    def __init__(self, folder: Path, scratch: Path, check: Callable[[Path, bool], None]) -> None:
        self.folder, self.scratch, self.check = folder, scratch, check
        self.states = 0
        self._bytes: dict[int, bytes] = {}
        self._names: dict[int, Names] = {}
        self._open: dict[int, int] = {}  # keeps files alive, so that no number is given out twice
        self._failing = False
        for place, _, _ in os.walk(folder):
            self._sync_folder(place)
            for entry in os.scandir(place):
                if entry.is_file():
                    self._bytes[self._number(Path(entry))] = Path(entry).read_bytes()

    def watch(self, monkeypatch: Any, program: Callable[[], None]) -> None:
        """Run the program; power fails before and after each of its calls that matter, and after its end."""
        sync, replace, unlink = os.fsync, os.replace, os.unlink

        def synced(handle: int) -> None:
            self._fail()
            sync(handle)
            path = Path(os.readlink(f"/proc/self/fd/{handle}"))
            if path.is_dir():
                self._sync_folder(path)
            else:
                self._bytes[self._number(path)] = path.read_bytes()
            self._fail()

        def around(call: Callable[..., Any]) -> Callable[..., Any]:
            def wrapped(*args: Any, **named: Any) -> Any:
                self._fail()
                done = call(*args, **named)
                self._fail()
                return done

            return wrapped

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", synced)
            patched.setattr(os, "replace", around(replace))
            patched.setattr(os, "unlink", around(unlink))
            program()
        self._fail(returned=True)
        for handle in self._open.values():
            os.close(handle)

    def _number(self, path: Path) -> int:
        number = os.stat(path).st_ino
        if number not in self._open:
            self._open[number] = os.open(path, os.O_RDONLY)
        return number

    def _sync_folder(self, place: str | Path) -> None:
        self._names[self._number(Path(place))] = self._now(Path(place))

    def _now(self, place: Path) -> Names:
        return {entry.name: self._number(Path(entry)) for entry in os.scandir(place)}

    def _fail(self, returned: bool = False) -> None:
        if self._failing:
            return
        self._failing = True
        there = {self._number(Path(place)): Path(place) for place, _, _ in os.walk(self.folder)}
        now = {number: self._now(place) for number, place in there.items()}
        changes = [
            (number, name)
            for number in now
            for name in {**now[number], **self._names.get(number, {})}
            if now[number].get(name) != self._names.get(number, {}).get(name)
        ]
        for lasting in _choices(changes):
            shutil.rmtree(self.scratch, ignore_errors=True)
            self._lay_out(os.stat(self.folder).st_ino, self.scratch, now, lasting)
            self.check(self.scratch, returned)
            self.states += 1
        self._failing = False

    def _lay_out(self, number: int, place: Path, now: dict[int, Names], lasting: set[Change]) -> None:
        place.mkdir()
        sure, current = self._names.get(number, {}), now.get(number, {})
        for name in {**sure, **current}:
            behind = current.get(name) if (number, name) in lasting else sure.get(name)
            if behind in now or behind in self._names:
                self._lay_out(behind, place / name, now, lasting)
            elif behind is not None:
                (place / name).write_bytes(self._bytes.get(behind, b""))


def _choices(changes: list[Change]) -> Iterator[set[Change]]:
    yield set()
    if changes:
        yield set(changes)
    if len(changes) > 1:
        for change in changes:
            yield {change}
            yield set(changes) - {change}
