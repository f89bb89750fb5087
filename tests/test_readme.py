"""The five commands of the README, as they stand there, lead from a table to a corrected model."""

import re
import shlex
from pathlib import Path

import pandas as pd
from typer.testing import CliRunner

from posterity.cli import app

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_the_five_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prepare = next(b for b in re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL) if "wine.csv" in b)
    exec(compile(prepare, "README.md", "exec"), {})
    block = re.search(r"^```sh\n(.*?)^```", README, re.MULTILINE | re.DOTALL)[1]
    commands = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert [words[1] for words in commands] == ["fit", "report", "map", "adapt", "predict"]
    for words in commands:
        assert words[0] == "posterity"
        done = CliRunner().invoke(app, words[1:], catch_exceptions=False)
        assert done.exit_code == 0, (words, done.output)
    suspects = pd.read_csv("suspects.csv")
    wrong = suspects["decision"] != "keep"
    assert wrong.any()
    assert (suspects["id"][wrong] % 12 == 0).mean() > 0.5  # where wrong labels were planted
    assert len(pd.read_csv("answers.csv")) == 178
    assert "Suspected labels" in Path("wine/report.html").read_text(encoding="utf-8")
