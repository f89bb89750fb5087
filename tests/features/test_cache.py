"""Features are computed once, kept part by part, and computed again where they are damaged."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from posterity.features import Cache, Encoder


class Lengths(Encoder):
    """Counts its calls, and stops at a text that says so."""

    kind, part, width = "text", 2, 1

    def __init__(self, path):
        super().__init__(path)
        self.seen = []

    def files(self):
        return []

    def encode(self, items):
        if "stop" in items:
            raise KeyboardInterrupt
        self.seen += items
        return np.array([[len(item)] for item in items], np.float32)

    def remarks(self, items):
        return [f"{len(items)} texts"]


def test_nothing_is_computed_twice(tmp_path):
    encoder, cache, items = Lengths(tmp_path), Cache(tmp_path / "features"), ["a", "bb", "ccc"]
    first = cache.features(encoder, items, "file")
    kept = cache.kept(encoder.fingerprint, "file", 3)
    assert first.vectors.ravel().tolist() == kept.vectors.ravel().tolist() == [1, 2, 3]
    assert kept.remarks == ("3 texts",)
    cache.features(encoder, items, "file")
    assert encoder.seen == items
    assert cache.kept(encoder.fingerprint, "another file", 3) is None


def test_goes_on_where_it_was_interrupted(tmp_path):
    encoder, cache = Lengths(tmp_path), Cache(tmp_path / "features")
    with pytest.raises(KeyboardInterrupt):
        cache.features(encoder, ["a", "bb", "stop"], "file")
    assert cache.kept(encoder.fingerprint, "file", 3) is None
    cache.features(encoder, ["a", "bb", "end"], "file")
    assert encoder.seen == ["a", "bb", "end"]


def test_a_damaged_part_is_computed_again(tmp_path):
    encoder, cache = Lengths(tmp_path), Cache(tmp_path / "features")
    cache.features(encoder, ["a", "bb", "ccc"], "file")
    part = next(tmp_path.rglob("00001.safetensors"))
    part.write_bytes(part.read_bytes()[:-1] + b"\x01")
    assert cache.kept(encoder.fingerprint, "file", 3) is None
    assert cache.features(encoder, ["a", "bb", "ccc"], "file").vectors.ravel().tolist() == [1, 2, 3]
    assert encoder.seen == ["a", "bb", "ccc", "ccc"]


def test_carried_to_another_run(tmp_path):
    encoder, cache = Lengths(tmp_path), Cache(tmp_path / "old")
    cache.features(encoder, ["a"], "file")
    cache.carried(tmp_path / "new")
    assert Cache(tmp_path / "new").kept(encoder.fingerprint, "file", 1).vectors.tolist() == [[1.0]]


CHILD = """
import os, signal, sys
from pathlib import Path
from features.test_cache import ITEMS, Lengths
from posterity.features import Cache, cache

place, write, calls = Path(sys.argv[1]), cache.write_sealed, []
die = lambda: os.kill(os.getpid(), signal.SIGKILL)
cache.write_sealed = lambda *given: die() if len(calls) == 2 else calls.append(write(*given))
Cache(place).features(Lengths(place), ITEMS, "file")
"""
ITEMS = ["a", "bb", "ccc", "dddd", "eeeee", "ffffff", "ggggggg"]


def test_goes_on_after_a_kill_between_a_part_and_the_list_that_names_it(tmp_path):
    paths = os.pathsep.join([str(Path(__file__).parent.parent), *sys.path])
    command = [sys.executable, "-c", CHILD, str(tmp_path)]
    died = subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, check=False)
    assert died.returncode == -signal.SIGKILL
    encoder, cache = Lengths(tmp_path), Cache(tmp_path)
    assert cache.kept(encoder.fingerprint, "file", len(ITEMS)) is None
    found = cache.features(encoder, ITEMS, "file")
    assert found.vectors.ravel().tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert encoder.seen == ITEMS[4:]
