"""Files of a run appear together or not at all, and nothing that changed is read."""

import json
import os
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest
import torch

from posterity.errors import InvalidInput, RefusedFile
from posterity.files import save_record
from posterity.runs import store
from posterity.runs.store import check_file, generation, locked, read_list
from power import Disk


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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_writers_leave_whole_posteriors_and_whole_runs(tmp_path):
    script = Path(__file__).parent.parent / "kills.py"
    command = [sys.executable, str(script), str(tmp_path), "save", "run", "--kills", "25"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.count("25 kills") == 2, done.stderr
    inside = [int(line.split(" kills, ")[1].split()[0]) for line in done.stdout.splitlines()]
    assert sum(inside) >= 5
    write(tmp_path / "run" / "run", 7)
    assert content(tmp_path / "run" / "run") == 7
    assert len(list((tmp_path / "run" / "run").iterdir())) == 4  # list, two files, lock: no litter is left


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
@pytest.mark.parametrize("old", [1, None], ids=["over an old run", "a new run"])
def test_power_may_fail_at_any_moment(tmp_path, monkeypatch, old):
    """The old run or the new one, all its files whole; and once the writer has returned, the new one."""
    folder = tmp_path / "disk" / "run"
    folder.parent.mkdir()

    def note(number):
        with generation(folder, None) as new:
            new.content["number"] = number
            new.write("history.jsonl", str(number).encode())
            place = new.place("deep")
            save_record(place, "thing", version=1, content={"number": number}, tensors={"x": torch.ones(1) * number})
            new.add("deep", place)

    if old:
        note(old)

    def check(state, returned):
        found = None
        if (state / "run" / "run.json").exists():
            listing = read_list(state / "run")
            whole = [check_file(state / "run", entry) for entry in listing.files.values()]
            assert len(whole) == 3
            found = listing.content["number"]
        assert found in ((2,) if returned else (old, 2))

    disk = Disk(folder.parent, tmp_path / "state", check)
    disk.watch(monkeypatch, lambda: note(2))
    assert disk.states > 50


def test_one_writer_at_a_time(tmp_path, monkeypatch):
    write(tmp_path, 1)
    monkeypatch.setattr(store, "PATIENCE", 0.1)
    with locked(tmp_path), pytest.raises(InvalidInput, match="no other writer"):
        write(tmp_path, 2)
    assert content(tmp_path) == 1


def test_writers_wait_for_each_other(tmp_path):
    write(tmp_path, 1)
    with locked(tmp_path):
        other = Thread(target=write, args=(tmp_path, 2))
        other.start()
        other.join(0.2)
        assert other.is_alive()
    other.join()
    assert content(tmp_path) == 2


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
