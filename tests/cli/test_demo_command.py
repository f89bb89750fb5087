"""`posterity demo`: a small one runs through and reports its own numbers."""

import io
import json
from contextlib import redirect_stdout

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from posterity.cli import app
from posterity.cli._demo.study import PLANTED, Digits, run
from posterity.cli._demo.terminal import show


@pytest.fixture(scope="module")
def study():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with redirect_stdout(io.StringIO()) as written:
        study = run(seed=1, steps=300)
    assert written.getvalue() == ""  # progress goes elsewhere, so that the command can print JSON
    yield study
    torch.set_num_threads(threads)


def test_planted_labels_are_wrong_and_the_new_digit_is_unseen():
    a, b = Digits.of(3), Digits.of(3)
    assert torch.equal(a.labels, b.labels)
    assert len(a.planted) == PLANTED
    assert not (a.labels == 9).any()
    assert (a.new[1] == 9).all()
    assert (a.foreign[1] == 9).all()
    assert len(a.labels) + len(a.new[1]) + len(a.known[1]) + len(a.foreign[1]) == 1797


def test_the_circle_closes(study):
    assert study.found > 0.8 * PLANTED
    assert study.label_auroc > 0.95
    assert study.accuracy > 0.9
    accuracy = study.changed["accuracy"]
    assert accuracy["doing nothing"] < accuracy["adaptation"]
    assert study.changed.loc["doing nothing", "new digit"] == 0
    assert study.changed.loc["adaptation", "new digit"] > 0.5
    assert study.changed.loc["adaptation", "passes"] < study.changed.loc["retraining", "passes"]
    assert study.estimate["estimated"] < study.estimate["now"]
    assert study.estimate["retrained"] < study.estimate["now"]
    assert study.direction == "lower"


def test_the_terminal_shows_the_numbers(study):
    console = Console(file=io.StringIO(), width=100)
    show(study, console)
    text = console.file.getvalue()
    for number in (
        f"{study.tumours.quality.loc['AdamW', 'NLL']:.4f}",
        f"{study.estimate['retrained']:.4f}",
        str(study.found),
    ):
        assert number in text


def test_the_command_writes_a_report_and_prints_json(study, tmp_path, monkeypatch):
    asked = []

    def known(*settings):
        asked.append(settings)
        return study

    monkeypatch.setattr("posterity.cli._demo.study.run", known)
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path), "--seed", "3", "--steps", "60", "--json"])
    assert result.exit_code == 0, result.output
    assert asked == [(3, 60)]
    numbers = json.loads(result.stdout)
    assert set(numbers["change"]) == {"doing nothing", "adaptation", "retraining"}
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"{numbers['digits']['accuracy']:.1%}" in page
    assert f"{numbers['quality']['po.fit']['NLL']:.3f}" in page
