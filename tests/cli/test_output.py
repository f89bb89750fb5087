"""How the commands speak, and what they call the files they write."""

import gc
import sys
from pathlib import Path

import pandas as pd
import pytest

from posterity.cli import keep_garbage
from posterity.cli._output import show_table, stem, successor, then


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("rows.csv", "rows"),
        ("sales.2024.01.csv", "sales.2024.01"),
        ("sales.2024.02.csv.gz", "sales.2024.02"),
        ("a", "a"),
    ],
)
def test_names_of_files_lose_their_endings_alone(name, wanted):
    assert stem(Path("somewhere") / name) == wanted


def test_names_of_folders_stay(tmp_path, monkeypatch):
    (tmp_path / "photos.v2").mkdir()
    monkeypatch.chdir(tmp_path / "photos.v2")
    assert stem(Path()) == stem(tmp_path / "photos.v2") == "photos.v2"
    assert stem(Path("..")) == tmp_path.name


def test_what_comes_of_a_run_is_numbered(tmp_path, capsys, monkeypatch):
    for name in ("my run", "my run-2", "alone-7", "-7"):
        (tmp_path / name).mkdir()
    assert successor(tmp_path / "my run") == successor(tmp_path / "my run-2") == tmp_path / "my run-3"
    assert successor(tmp_path / "alone-7") == tmp_path / "alone-7-2"
    assert successor(tmp_path / "-7") == tmp_path / "-7-2"
    monkeypatch.chdir(tmp_path / "my run")
    assert successor(Path()) == successor(Path("../my run-2/../my run/.")).resolve() == tmp_path / "my run-3"
    assert successor(Path("..")) == tmp_path.with_name(f"{tmp_path.name}-2")
    then("adapt", Path("my run"), "--out", Path("my run-3"))
    assert capsys.readouterr().out == "then: posterity adapt 'my run' --out 'my run-3'\n"


def test_columns_of_the_same_name_are_told_apart(capsys):
    show_table(pd.DataFrame([["nll", 0.5, -0.0]], columns=["figure", "run", "run"]))
    assert capsys.readouterr().out.split() == ["figure", "run", "run", "nll", "0.5", "0"]


@pytest.mark.parametrize("triton", [False, True])
def test_garbage_is_left_but_for_triton_which_counts_it(monkeypatch, triton):
    frozen: list[bool] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    if triton:
        monkeypatch.setitem(sys.modules, "triton", sys)
    keep_garbage()
    assert bool(frozen) is not triton
