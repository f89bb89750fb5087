"""Files that are whole or not there: crashes at every point, damaged bytes, bombs."""

from __future__ import annotations

import errno
import json
import os
import signal
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posterity import files
from posterity.errors import InvalidInput, RefusedFile
from power import Disk

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]


def some_tensors(value: float = 1.0) -> dict[str, torch.Tensor]:
    return {"a": torch.full((3, 2), value), "b/ü": torch.full((), value, dtype=torch.float64), "c": torch.zeros(0, 4)}


def save(folder: Path, value: float) -> None:
    files.save_record(folder, "thing", version=1, content={"value": value}, tensors=some_tensors(value))


def load(folder: Path) -> float:
    record = files.load_record(folder, "thing", version=1)
    assert all((t == record.content["value"]).all() for t in record.tensors.values())
    return record.content["value"]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=3)), max_size=6))
def test_the_official_reader_reads_what_we_write(tmp_path_factory: pytest.TempPathFactory, parts) -> None:
    path = tmp_path_factory.mktemp("t") / "t.safetensors"
    tensors = {f"t{i}": torch.randint(0, 2, shape).to(dtype) for i, (dtype, shape) in enumerate(parts)}
    digest = files.write_tensors(path, tensors)
    assert digest == files.sha256(path)
    for read in (safetensors.torch.load_file(path), files.read_tensors(path)):
        assert read.keys() == tensors.keys()
        assert all(torch.equal(read[name], t) and read[name].dtype == t.dtype for name, t in tensors.items())


def test_views_and_shared_tensors_are_written_by_value(tmp_path: Path) -> None:
    base = torch.arange(6.0).reshape(2, 3)
    tensors = {"turned": base.T, "same": base, "again": base, "broadcast": torch.ones(1).expand(4)}
    files.write_tensors(tmp_path / "t.safetensors", tensors)
    read = files.read_tensors(tmp_path / "t.safetensors")
    assert all(torch.equal(read[name], t) for name, t in tensors.items())


def test_a_dtype_that_cannot_be_stored_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="dtype of 'z': expected one of"):
        files.write_tensors(tmp_path / "t.safetensors", {"z": torch.zeros(2, dtype=torch.complex64)})
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "note.json"
    files.write_json(path, {"x": 1})

    def fail() -> None:
        with files.atomic(path) as file:
            file.write(b"half")
            raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        fail()
    assert files.read_json(path) == {"x": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["note.json"]


def test_files_are_readable_as_the_umask_says(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        files.write_bytes(tmp_path / "x", b"1")
    finally:
        os.umask(old)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o644


def test_records_replace_each_other_and_leave_no_litter(tmp_path: Path) -> None:
    for value in (1.0, 2.0, 3.0):
        save(tmp_path / "deep" / "folder", value)
        assert load(tmp_path / "deep" / "folder") == value
    names = sorted(path.name for path in (tmp_path / "deep" / "folder").iterdir())
    assert names == ["thing-3.safetensors", "thing.json"]


def test_a_reader_follows_a_writer_who_switches_in_between(tmp_path: Path, monkeypatch) -> None:
    save(tmp_path, 1.0)
    real, switched = files.sha256, []

    def slow(path: Path) -> str:
        if not switched:
            switched.append(path)
            save(tmp_path, 2.0)  # which sweeps away what the reader was about to read
        return real(path)

    monkeypatch.setattr(files, "sha256", slow)
    assert load(tmp_path) == 2.0
    assert switched[0].name == "thing-1.safetensors"


class Crash(BaseException):
    """A process that dies: nothing after this is executed on the disk."""


def test_a_crash_at_any_point_leaves_the_old_record_or_the_new(tmp_path: Path, monkeypatch) -> None:
    """The n-th operation on the disk is the last one; whatever n is, what can be read is whole."""
    seen = []
    for last in range(1, 40):
        folder = tmp_path / str(last)
        save(folder, 1.0)
        operations = 0

        def dying(real):
            def operation(*args, **kwargs):
                nonlocal operations
                operations += 1
                if operations >= last:
                    raise Crash
                return real(*args, **kwargs)

            return operation

        with monkeypatch.context() as patch:
            for name in ("fsync", "replace", "open"):
                patch.setattr(files.os, name, dying(getattr(os, name)))
            patch.setattr(Path, "unlink", dying(Path.unlink))
            try:
                save(folder, 2.0)
                finished = True
            except Crash:
                finished = False
        seen.append(load(folder))
        save(folder, 3.0)
        assert load(folder) == 3.0
        assert len(list(folder.iterdir())) == 2, "a later save sweeps what the crash left"
        if finished:
            break
    assert finished
    assert seen[0] == 1.0
    assert seen[-1] == 2.0
    assert seen == sorted(seen)


KILLER = """
import os, random, signal, sys, time, torch
from posterity import files

def save(value):
    tensors = {"x": torch.full((50_000,), value)}
    files.save_record(sys.argv[1], "thing", version=1, content={"value": value}, tensors=tensors)

value = 0.0
for attempt in range(20):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        while True:
            value += 1.0
            save(value)
            os.write(writer, b".")
    os.close(writer)
    os.read(reader, 1)
    time.sleep(random.Random(attempt).uniform(0, 0.02))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    finished = value + 1
    while dots := os.read(reader, 1000):
        finished += len(dots)
    os.close(reader)
    record = files.load_record(sys.argv[1], "thing", version=1)
    value = record.content["value"]
    assert value >= finished, (value, finished)
    assert (record.tensors["x"] == value).all()
print("whole every time")
"""


def test_a_disk_that_is_full_is_said_with_the_file(tmp_path: Path, monkeypatch) -> None:
    def full(*_) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: .*a\.json"):
        files.write_json(tmp_path / "a.json", {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_kill_9(tmp_path: Path) -> None:
    """A writer that is killed while it saves over and over leaves a whole record, and never an older one."""
    done = subprocess.run([sys.executable, "-c", KILLER, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout == "whole every time\n", done.stderr


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
@pytest.mark.parametrize("saved", [True, False], ids=["over an old record", "into a new folder"])
def test_power_may_fail_at_any_moment(tmp_path: Path, monkeypatch, saved: bool) -> None:
    """The old record or the new one; and once `save` has returned, the new one, whatever happens then."""
    folder = tmp_path / "disk" / "record"
    folder.parent.mkdir()
    if saved:
        save(folder, 1.0)

    def check(state: Path, returned: bool) -> None:
        found = load(state / "record") if (state / "record" / "thing.json").exists() else None
        assert found in ((2.0,) if returned else (1.0 if saved else None, 2.0))

    disk = Disk(folder.parent, tmp_path / "state", check)
    disk.watch(monkeypatch, lambda: save(folder, 2.0))
    assert disk.states > 20


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_folder_is_held_by_one_process_and_freed_by_its_end(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with files.one_at_a_time(tmp_path):
            os.write(writer, b".")
            time.sleep(60)
        os._exit(0)
    os.read(reader, 1)
    with pytest.raises(TimeoutError, match="another process"), files.one_at_a_time(tmp_path, 0.05):
        pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reader)
    os.close(writer)
    with files.one_at_a_time(tmp_path, 0.05):
        pass


def test_writers_of_one_record_wait_for_each_other(tmp_path: Path) -> None:
    def save(value: int) -> None:
        tensors = {"x": torch.full((2000,), float(value))}
        files.save_record(tmp_path / "r", "thing", version=1, content={"value": value}, tensors=tensors)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(save, range(60)))
    record = files.load_record(tmp_path / "r", "thing", version=1)
    assert (record.tensors["x"] == record.content["value"]).all()
    assert len(list((tmp_path / "r").iterdir())) == 2


@pytest.mark.parametrize("name", ["thing.json", "thing-1.safetensors"])
def test_every_flipped_byte_is_refused(tmp_path: Path, name: str) -> None:
    save(tmp_path, 1.0)
    path = tmp_path / name
    whole = path.read_bytes()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(bytes(damaged))
        with pytest.raises(RefusedFile, match="expected"):
            files.load_record(tmp_path, "thing", version=1)
    path.write_bytes(whole)
    assert load(tmp_path) == 1.0


@pytest.mark.parametrize("cut", [0, 1, 7, 8, 9, 60, -1])
@pytest.mark.parametrize("name", ["thing.json", "thing-1.safetensors"])
def test_truncated_and_grown_files_are_refused(tmp_path: Path, name: str, cut: int) -> None:
    save(tmp_path, 1.0)
    whole = (tmp_path / name).read_bytes()
    for data in (whole[:cut], whole + whole[:cut] + b" "):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(RefusedFile, match="expected"):
            files.load_record(tmp_path, "thing", version=1)


def forge(folder: Path, **changes) -> None:
    """Write a manifest with other fields and a hash that fits: what a hostile writer can do."""
    manifest = json.loads((folder / "thing.json").read_text())
    manifest.pop("sha256")
    for name, value in changes.items():
        manifest[name] = {**manifest[name], **value} if isinstance(value, dict) else value
    manifest["sha256"] = files.hashlib.sha256(files._encode(manifest)).hexdigest()
    files.write_json(folder / "thing.json", manifest)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "expected format version 1 or older, got 2; a newer posterity wrote it"),
        ({"version": 0}, "expected format version"),
        ({"version": "1"}, "expected format version"),
        ({"format": "other"}, "expected the manifest of a thing, got another file"),
        ({"content": None}, "without them"),
        ({"file": None}, "without them"),
        ({"file": {"name": "../thing-1.safetensors"}}, "without them"),
        ({"file": {"name": "/etc/passwd"}}, "without them"),
        ({"file": {"name": "thing-2.safetensors"}}, "got no such file"),
        ({"file": {"size": 5}}, "expected 5 bytes"),
        ({"file": {"sha256": "0" * 64}}, "expected sha256 0000"),
        ({"file": {"tensors": {"a": ["F32", [3, 2]]}}}, "expected None for 'b/ü'"),
        ({"file": {"tensors": {**files._inventory(some_tensors()), "d": ["F32", []]}}}, "for 'd', got None"),
        (
            {"file": {"tensors": {**files._inventory(some_tensors()), "a": ["F32", [2, 3]]}}},
            r"expected \['F32', \[2, 3\]\]",
        ),
        (
            {"file": {"tensors": {**files._inventory(some_tensors()), "a": ["F64", [3, 2]]}}},
            r"expected \['F64', \[3, 2\]\]",
        ),
    ],
)
def test_forged_manifests_are_refused(tmp_path: Path, changes, message: str) -> None:
    save(tmp_path, 1.0)
    forge(tmp_path, **changes)
    with pytest.raises(RefusedFile, match=message):
        files.load_record(tmp_path, "thing", version=1)


def test_headers_that_are_bombs_are_refused(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "bomb.safetensors"
    path.write_bytes(struct.pack("<Q", 2**60) + b"{}")
    with pytest.raises(RefusedFile, match="expected a header of at most 2 bytes"):
        files.read_tensors(path)
    monkeypatch.setattr(files, "HEADER_LIMIT", 64)
    path.write_bytes(struct.pack("<Q", 100) + b" " * 200)
    with pytest.raises(RefusedFile, match="expected a header of at most 64 bytes, got 100"):
        files.read_tensors(path)
    monkeypatch.undo()
    monkeypatch.setattr(files, "TENSOR_LIMIT", 2)
    files.write_tensors(path, some_tensors())
    with pytest.raises(RefusedFile, match="at most 2 tensors, got 3"):
        files.read_tensors(path)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "NaN", '{"a": Infinity}', "-1e999", "9" * 5000, "\x00", '{"a": 1', "\udcff"]
)
def test_hostile_json_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(RefusedFile, match="expected JSON"):
        files.read_json(path)


def test_json_that_is_missing_or_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedFile, match="expected a file, got none"):
        files.read_json(tmp_path / "no.json")
    files.write_json(tmp_path / "x.json", list(range(100)))
    with pytest.raises(RefusedFile, match="expected at most 10 bytes"):
        files.read_json(tmp_path / "x.json", limit=10)
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(tmp_path / "x.json", float("nan"))
    assert files.read_json(tmp_path / "x.json") == list(range(100))


def test_what_is_read_is_aligned_as_torch_aligns(tmp_path):
    tree = {name: torch.arange(float(n)) for name, n in (("a", 3), ("b", 5), ("c", 7))}
    files.write_tensors(tmp_path / "odd.safetensors", tree)
    found = files.read_tensors(tmp_path / "odd.safetensors")
    assert all(torch.equal(found[name], t) for name, t in tree.items())
    assert [t.data_ptr() % 64 for t in found.values()] == [0, 0, 0]
