"""`posterity table`: what it prints and how it exits."""

import dataclasses
import json
import os
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import posterity
from posterity import table
from posterity.cli import app, main

NEWTON = table.row("newton")


@pytest.fixture
def rows(monkeypatch):
    """Replace the registry, so that a command runs these rows only."""

    def replace(*rows: table.Row) -> None:
        monkeypatch.setattr(table, "ROWS", rows)

    return replace


def invoke(*arguments: str):
    return CliRunner().invoke(app, ["table", *arguments])


def test_all_rows_within_tolerance_exit_zero(rows):
    rows(table.row("gradient-descent"), table.row("adam"))
    result = invoke()
    assert result.exit_code == 0
    for word in ("gradient-descent", "fixed covariance", "debiasing", "torch.optim.Adam", "All 2 rows"):
        assert word in result.output


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_nothing_is_cut_in_a_narrow_terminal():
    code = (
        "import os, sys; from posterity import table; table.ROWS = (table.row('adam'), table.row('ogn'))\n"
        "from posterity.cli import main; sys.argv = ['posterity', 'table']\n"
        "for columns in '40', '80', '120':\n"
        "    os.environ['COLUMNS'] = columns\n"
        "    try: main()\n"
        "    except SystemExit as end: print('ended with', end.code)"
    )
    terminal, side = os.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=side, stderr=subprocess.PIPE, env=environment, check=False
    )
    os.close(side)
    *tables, rest = re.sub(r"\x1b\[[0-9;]*m", "", os.read(terminal, 65536).decode()).split("ended with 0")
    os.close(terminal)
    assert (done.returncode, rest.strip()) == (0, "")
    for columns, shown in zip((40, 80, 120), tables, strict=True):
        assert "…" not in shown
        for words in ("adam", "diagonal", "debiasing", "torch.optim.Adam", "per-example", "1e-14", "All 2 rows"):
            assert words in shown
        assert max(map(len, shown.splitlines())) <= columns


def test_a_row_that_is_off_exits_one(rows):
    rows(NEWTON, dataclasses.replace(NEWTON, name="broken", measure=lambda: 0.5))
    result = invoke()
    assert result.exit_code == 1
    assert "5.0e-01 > 1e-12" in result.output
    assert "off: broken" in result.output


def test_a_missing_package_exits_two_before_anything_runs(rows):
    def never() -> float:
        raise AssertionError("ran")

    rows(dataclasses.replace(NEWTON, measure=never), dataclasses.replace(NEWTON, package="no_such_package"))
    result = invoke()
    assert result.exit_code == 2
    assert "not installed: no_such_package; pip install 'posterity[table]'" in result.output


def test_one_row_is_explained():
    result = invoke("newton")
    assert result.exit_code == 0
    for words in ("m ← m − S⁻¹ ∇ℓ(m)", "Approximations: delta", "statsmodels", "≤ 1e-12"):
        assert words in result.output


def test_json(rows):
    rows(NEWTON, dataclasses.replace(NEWTON, name="broken", measure=lambda: 0.5))
    result = invoke("--json")
    assert result.exit_code == 1
    good, bad = json.loads(result.output)
    assert good["row"] == "newton"
    assert good["holds"]
    assert good["deviation"] <= good["tolerance"] == 1e-12
    assert (bad["row"], bad["deviation"], bad["holds"]) == ("broken", 0.5, False)


def test_json_has_no_nan(rows):
    rows(dataclasses.replace(NEWTON, measure=lambda: float("nan")))
    result = invoke("--json")
    assert result.exit_code == 1
    assert json.loads(result.output, parse_constant=pytest.fail)[0]["deviation"] is None


def test_one_format_at_a_time():
    result = invoke("newton", "--json", "--markdown")
    assert result.exit_code == 2
    assert "exclude each other" in result.output


def test_a_package_that_cannot_be_imported_is_one_line_and_exit_two():
    code = (
        "import sys; sys.modules['scipy'] = None; sys.argv = ['posterity', 'table', 'newton']\n"
        "from posterity.cli import main\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("posterity: row 'newton': ")
    assert done.stderr.endswith("pip install 'posterity[table]'\n")
    assert len(done.stderr.splitlines()) == 1


def test_markdown_runs_nothing(rows):
    rows(dataclasses.replace(NEWTON, measure=lambda: pytest.fail("ran")))
    result = invoke("--markdown")
    assert result.exit_code == 0
    assert result.output.startswith("| row | posterior |")
    assert "### newton" in result.output


def test_an_unknown_row_is_one_line_and_exit_two(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["posterity", "table", "nonsense"])
    with pytest.raises(SystemExit) as leaving:
        main()
    assert leaving.value.code == 2
    assert capsys.readouterr().err.startswith("posterity: row: expected one of gradient-descent")


def test_version():
    result = CliRunner().invoke(app, ["--version"])
    assert result.output.strip() == posterity.__version__


def test_help_does_not_import_torch():
    code = (
        "import sys; sys.argv = ['posterity', '--help']\n"
        "from posterity.cli import main\n"
        "try: main()\n"
        "except SystemExit as leaving: assert leaving.code == 0\n"
        "heavy = {'torch', 'numpy', 'scipy', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "table" in done.stdout
