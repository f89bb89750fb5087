"""How the commands speak, and what they call the files they write."""

from pathlib import Path

import pandas as pd
import pytest

from posterity.cli._output import show_table, stem


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


def test_columns_of_the_same_name_are_told_apart(capsys):
    show_table(pd.DataFrame([["nll", 0.5, 0.25]], columns=["figure", "run", "run"]))
    assert capsys.readouterr().out.split() == ["figure", "run", "run", "nll", "0.5", "0.25"]
