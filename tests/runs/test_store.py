"""Files of a run appear together or not at all, and nothing that changed is read."""

import json
import os
import signal
import subprocess
import sys

import pytest

from posterity.errors import InvalidInput, RefusedFile
from posterity.runs.store import check_file, generation, locked, read_list

KILLED = """
import sys
from pathlib import Path
from posterity.runs.store import generation, read_list
folder = Path(sys.argv[1])
print("ready", flush=True)
for number in range(1, 10**6):
    with generation(folder, lambda: read_list(folder)) as new:
        new.content["number"] = number
        for name in ("history.jsonl", "model.safetensors"):
            new.write(name, (str(number) * 20_000).encode())
"""


def write(folder, number):
    with generation(folder, None) as new:
        new.content["number"] = number
        for name in ("history.jsonl", "model.safetensors"):
            new.write(name, (str(number) * 20_000).encode())


def interrupted(new):
    new.write("history.jsonl", b"unfinished")
    raise KeyboardInterrupt


def content(folder):
    listing = read_list(folder)
    for entry in listing.files.values():
        text = check_file(folder, entry).read_text()
        assert text == str(listing.content["number"]) * 20_000
    return listing.content["number"]


def test_a_new_version_replaces_the_old_one_and_leaves_nothing_behind(tmp_path):
    for number in (1, 2, 3):
        write(tmp_path, number)
        assert content(tmp_path) == number
    assert len([path for path in tmp_path.iterdir() if path.name != ".lock"]) == 3


def test_an_error_leaves_everything_as_it_was(tmp_path):
    write(tmp_path, 1)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(KeyboardInterrupt), generation(tmp_path, lambda: read_list(tmp_path)) as new:
        interrupted(new)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_files_of_others_are_left_alone_whatever_their_names(tmp_path):
    mine = ("notes.txt", "model.safetensors", "predictions.csv", "report.html", ".memory.csv.0123456789ab.tmp")
    for name in mine:
        (tmp_path / name).write_text("mine")
    (tmp_path / "posterior").mkdir()
    (tmp_path / "posterior" / "paper.tex").write_text("mine")
    for number in (1, 2):
        write(tmp_path, number)
        (tmp_path / "memory.parquet").write_text("put into the run by somebody")
    assert content(tmp_path) == 2
    assert all((tmp_path / name).read_text() == "mine" for name in (*mine, "posterior/paper.tex"))
    assert (tmp_path / "memory.parquet").exists()


def test_a_damaged_run_can_be_replaced(tmp_path):
    write(tmp_path, 1)
    (tmp_path / "run.json").write_text("{}")
    write(tmp_path, 2)
    assert content(tmp_path) == 2


@pytest.mark.parametrize("moment", [0.02, 0.05, 0.08, 0.13, 0.21])
def test_killed_writers_leave_a_whole_run(tmp_path, moment):
    write(tmp_path, 0)
    writer = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    writer.stdout.readline()
    signal.sigtimedwait([], moment)
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    assert content(tmp_path) >= 0
    write(tmp_path, 7)
    assert content(tmp_path) == 7
    assert len(list(tmp_path.iterdir())) == 4  # list, two files, lock: what the killed writer began is gone


def test_one_writer_at_a_time(tmp_path):
    write(tmp_path, 1)
    with locked(tmp_path), pytest.raises(InvalidInput, match="no other writer"):
        write(tmp_path, 2)
    assert content(tmp_path) == 1


def test_a_disk_that_is_full_is_an_error_and_the_old_run_stays(tmp_path, monkeypatch):
    write(tmp_path, 1)
    real = os.fsync

    def full(handle):
        if os.fstat(handle).st_size > 1000:
            raise OSError(28, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path, 2)
    monkeypatch.undo()
    assert content(tmp_path) == 1


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", "a\\..\\b"])
def test_lists_that_point_outside_are_refused(tmp_path, path):
    from posterity.files import write_sealed

    entry = {"path": path, "size": 1, "sha256": "0"}
    write_sealed(tmp_path / "run.json", {"format": "run", "version": 1, "content": {}, "files": {"x": entry}})
    with pytest.raises(RefusedFile, match="inside the folder"):
        read_list(tmp_path)


def test_links_are_refused(tmp_path):
    write(tmp_path, 1)
    listing = read_list(tmp_path)
    path = tmp_path / listing.files["history.jsonl"].path
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RefusedFile):
        check_file(tmp_path, listing.files["history.jsonl"])


def test_other_folders_are_refused(tmp_path):
    with pytest.raises(RefusedFile, match="expected a run"):
        read_list(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps({"format": "run", "version": 1, "content": {}, "files": {}}))
    with pytest.raises(RefusedFile, match="damaged"):
        read_list(tmp_path)
