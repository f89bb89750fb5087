"""The commands of the documentation run as they stand, one after the other."""

import re
import shlex
from pathlib import Path

import pandas as pd
from typer.testing import CliRunner

from posterity.cli import app

PAGE = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")


def block(language):
    return re.search(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL).group(1)


def test_five_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    planted = {}
    exec(block("python"), planted)
    commands = [shlex.split(line) for line in block("bash").splitlines()]
    assert [words[:2] for words in commands] == [
        ["posterity", c] for c in ("fit", "map", "adapt", "compare", "predict")
    ]
    printed = ""
    for words in commands:
        result = CliRunner().invoke(app, words[1:], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        printed += result.output
    for shown in (r"data: 423 .*", r"inputs: 30 .*", r"a logistic regression .*", r"0 rows added, .*"):
        assert re.search(shown, PAGE)[0] in printed  # figures that do not depend on the machine's rounding
    suspects = pd.read_csv("decisions.csv")["id"]
    found = len(set(suspects) & set(planted["wrong"].tolist()))
    assert found >= 7, "of the eight that are trained on, chance would find a quarter of one"
    assert len(pd.read_csv("new-predictions.csv")) == 40
