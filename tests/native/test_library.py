"""A C source compiled once and kept; whatever is missing is said or done without."""

import ctypes
import os
import stat
import subprocess
import tempfile

import pytest

from posterity.native import _library

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


def planted(source, tmp_path):
    """A library that gives a wrong answer, where the right one would be kept."""
    _library.load(source, ["ANSWER=1"])
    (wrong,) = kept(tmp_path)
    name = f"answer-{_library._digest(source, [COMPILER], [*_library.FLAGS, '-DANSWER=2'])}.so"
    return wrong.rename(wrong.with_name(name))


def test_a_folder_that_others_can_write_to_is_not_trusted(source, tmp_path):
    wrong = planted(source, tmp_path)
    wrong.parent.chmod(0o777)
    before = wrong.read_bytes()
    assert _library.load(source, ["ANSWER=2"]).answer() == 2
    assert [(path, path.read_bytes()) for path in kept(tmp_path)] == [(wrong, before)]


def test_a_library_that_others_can_write_to_is_made_again(source, tmp_path):
    wrong = planted(source, tmp_path)
    wrong.chmod(0o666)
    assert _library.load(source, ["ANSWER=2"]).answer() == 2
    assert ctypes.CDLL(str(wrong)).answer() == 2
    assert stat.S_IMODE(wrong.stat().st_mode) == stat.S_IMODE(wrong.parent.stat().st_mode) == 0o700


def test_a_library_of_somebody_else_is_not_trusted(source, tmp_path, monkeypatch):
    planted(source, tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    monkeypatch.setattr(_library, "ROOT", 54321)
    assert _library.load(source, ["ANSWER=2"]).answer() == 2


def test_a_user_without_a_home(source, monkeypatch):
    def nowhere():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(_library.Path, "home", nowhere)
    assert _library.load(source, ["ANSWER=6"]).answer() == 6


def test_nowhere_to_write_is_said(source, tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("a file where the folder should be")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(_library.NoLibrary, match=r"answer\.c cannot be compiled: .*missing"):
        _library.load(source)


def test_what_cannot_be_put_in_place_leaves_nothing_behind(source, tmp_path, monkeypatch):
    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert _library.load(source, ["ANSWER=8"]).answer() == 8
    assert kept(tmp_path) == []


@pytest.mark.parametrize(
    "lines",
    [
        ["model name\t: Old", "flags\t\t: fpu avx2"],
        ["CPU implementer\t: 0x41", "CPU part\t: 0xd40", "Features\t: fp asimd sve"],
    ],
    ids=["x86", "ARM"],
)
def test_every_feature_of_a_processor_makes_another_library(source, tmp_path, monkeypatch, lines):
    path = tmp_path / "cpuinfo"
    monkeypatch.setattr(_library, "CPUINFO", path)
    found = set()
    for changed in (None, *range(len(lines))):
        path.write_text("\n".join(line + " more" * (i == changed) for i, line in enumerate(lines)))
        found.add(_library._digest(source, [COMPILER], []))
    assert len(found) == len(lines) + 1


def test_a_compiler_that_fails_without_a_word_is_said(source, tmp_path, monkeypatch):
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\necho >&2\nexit 1\n")
    silent.chmod(silent.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CC", str(silent))
    with pytest.raises(_library.NoLibrary, match=r"does not compile with .*silent: .*exit status 1"):
        _library.load(source)
