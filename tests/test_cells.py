"""Cells that a spreadsheet would run: escaped in every CSV file, and read back as they were."""

import io

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posterity.cells import escaped, escaped_table, unescaped, unescaped_table
from posterity.runs.tables import kinds, read_table, write_table

FORMULAS = ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "-", "=1", "--1"]


@given(st.text(alphabet="'=+-@\t\r1.e a", max_size=8) | st.text())
def test_every_text_comes_back(text: str) -> None:
    assert unescaped(escaped(text)) == text


@pytest.mark.parametrize("text", FORMULAS)
def test_formulas_become_texts(text: str) -> None:
    assert escaped(text) == f"'{text}"


@pytest.mark.parametrize("text", ["-1.5", "+2", "-.5e-3", "-inf", "cat", "", "a=b", "'tis", "1-2"])
def test_numbers_and_words_stay(text: str) -> None:
    assert escaped(text) == text
    assert unescaped(text) == text


def test_tables_with_their_headings(tmp_path) -> None:
    table = pd.DataFrame({"=head": [*FORMULAS, "plain", None], "number": [-1.5] * 11})
    table["kind"] = pd.Categorical(["=a", "b"] * 5 + ["b"])
    write_table(table, tmp_path / "t.csv")
    written = pd.read_csv(tmp_path / "t.csv", dtype=str, keep_default_na=False)
    cells = [*written.columns, *written["=head" if "=head" in written else "'=head"], *written["kind"]]
    assert not any(cell[:1] in tuple("=+-@\t\r") and cell for cell in cells)
    back = read_table(tmp_path / "t.csv", kinds(table))
    assert list(back.columns) == list(table.columns)
    assert back["=head"].tolist()[:-1] == table["=head"].tolist()[:-1]
    codes = pd.DataFrame({"=code": ["1", "007"]})
    write_table(codes, tmp_path / "codes.csv")
    assert read_table(tmp_path / "codes.csv", kinds(codes))["=code"].tolist() == ["1", "007"]
    assert back["kind"].tolist() == table["kind"].tolist()


def test_a_table_without_formulas_is_not_copied() -> None:
    table = pd.read_csv(io.StringIO("a,b\nx,-1\n"))
    assert escaped_table(table) is table
    assert unescaped_table(table) is table
