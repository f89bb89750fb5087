"""A C source compiled once and kept; whatever is missing is said or done without."""

import ctypes
import os
import stat
import subprocess

import pytest

from posterity.optim.kernels import _library

try:
    COMPILER = _library.find_compiler()[0]
except _library.NoLibrary as why:
    pytest.skip(str(why), allow_module_level=True)


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "answer.c"
    path.write_text("int answer(void) { return ANSWER; }")
    return path


def kept(tmp_path):
    return sorted((tmp_path / "cache" / "posterity").iterdir())


def never(*_):
    raise AssertionError("the compiler was called")


def test_compiled_once_and_kept(source, tmp_path, monkeypatch):
    assert _library.load(source, ["ANSWER=41"]).answer() == 41
    assert [path.suffix for path in kept(tmp_path)] == [".so"]
    monkeypatch.setattr(_library, "_run", never)
    assert _library.load(source, ["ANSWER=41"]).answer() == 41


def test_another_source_or_definition_is_another_library(source, tmp_path):
    assert _library.load(source, ["ANSWER=1"]).answer() == 1
    assert _library.load(source, ["ANSWER=2"]).answer() == 2
    source.write_text("int answer(void) { return ANSWER + 10; }")
    assert _library.load(source, ["ANSWER=2"]).answer() == 12
    assert len(kept(tmp_path)) == 3


def test_a_damaged_library_is_made_again(source, tmp_path):
    name = f"answer-{_library._digest(source, [COMPILER], [*_library.FLAGS, '-DANSWER=7'])}.so"
    (tmp_path / "cache" / "posterity").mkdir(parents=True)
    (tmp_path / "cache" / "posterity" / name).write_bytes(b"half a file")
    assert _library.load(source, ["ANSWER=7"]).answer() == 7
    assert ctypes.CDLL(str(tmp_path / "cache" / "posterity" / name)).answer() == 7


def test_a_cache_that_cannot_be_written_is_done_without(source, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert _library.load(source, ["ANSWER=5"]).answer() == 5


def test_a_compiler_that_knows_neither_threads_nor_this_machine(source, tmp_path, monkeypatch):
    plain = tmp_path / "plain"
    plain.write_text(
        f'#!/bin/sh\nfor x in "$@"; do case $x in -fopenmp|-march=*) exit 1;; esac; done\nexec {COMPILER} "$@"\n'
    )
    plain.chmod(plain.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CC", str(plain))
    assert _library.load(source, ["ANSWER=3"]).answer() == 3


def test_code_that_does_not_compile_is_said(source):
    source.write_text("no C at all")
    with pytest.raises(_library.NoLibrary, match=r"answer\.c does not compile with .*: .*"):
        _library.load(source)


@pytest.mark.parametrize("named", [None, "no-such-compiler"])
def test_no_compiler_is_said(source, monkeypatch, named):
    monkeypatch.setenv("PATH", os.devnull)
    monkeypatch.delenv("CC", raising=False)
    if named:
        monkeypatch.setenv("CC", named)
    monkeypatch.setattr(subprocess, "run", never)
    with pytest.raises(_library.NoLibrary, match="no C compiler was found"):
        _library.load(source)
