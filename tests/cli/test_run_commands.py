"""The commands on runs, as a newcomer would type them, and what they say about mistakes."""

import json
import re
import sys
import warnings

import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from typer.main import get_command
from typer.testing import CliRunner

from posterity.cli import app, main
from posterity.cli._fit import METHODS as NAMED
from posterity.errors import InvalidInput
from posterity.learning.learners import METHODS
from runs.problems import flowers, line

QUICK = ("--model", "linear", "--epochs", "3", "--folds", "0", "--lr", "0.5", "--hess-init", "1")


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder = tmp_path_factory.mktemp("work")
    table = flowers(folder / "flowers.csv", rows=100)
    table.head(12).drop(columns="species").to_csv(folder / "new.csv", index=False)
    line(folder / "line.csv")
    (folder / "torn.py").write_text("def net(:")
    (folder / "ragged.csv").write_text("x,y\n1,2\n1,2,3\n")
    (folder / "sheet.xlsx").write_bytes(b"PK")
    return folder


@pytest.fixture(autouse=True)
def inside(here, monkeypatch):
    monkeypatch.chdir(here)


def posterity(*words, code=0):
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.stdout


def complaint(monkeypatch, capsys, *words):
    """What the command line says about a mistake, and its exit code."""
    monkeypatch.setattr(sys, "argv", ["posterity", *map(str, words)])
    with pytest.raises(SystemExit) as stopped:
        main()
    said = capsys.readouterr().err.strip()
    assert "Traceback" not in said
    assert len(said.splitlines()) == 1
    return said, stopped.value.code


@pytest.fixture(scope="module")
def run(here):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        posterity("fit", "flowers.csv", "--target", "species", "--out", "run", *QUICK)
    return here / "run"


def test_one_epoch_is_no_plural(here):
    said = posterity("fit", "flowers.csv", "--target", "species", "--out", "once", "--epochs", 1, "--folds", 2)
    assert "; 1 epoch\n" in said


def test_the_story_of_a_newcomer(run, here):
    said = posterity("map", "run", "--top", "5", "--decisions", "decisions.csv", "--out", "map.csv")
    assert "most suspicious" in said
    assert len(pd.read_csv("map.csv")) == 80
    decisions = pd.read_csv("decisions.csv").assign(decision=["drop", "drop", "keep", "keep", "keep"])
    decisions.to_csv("decisions.csv", index=False)
    said = posterity("what-if", "run", "--decisions", "decisions.csv", "--measure", "--repeats", "2")
    assert "2 rows dropped, 0 relabelled; effect on 20 held-out rows:" in said
    assert "estimated: mean loss" in said
    assert "measured:  mean loss of 20 examples" in said
    said = posterity("adapt", "run", "--decisions", "decisions.csv", "--out", "run2")
    assert "0 rows added, 2 dropped, 0 relabelled; 78 rows now" in said
    assert "held-out labels are as they were" in said
    assert "verdict:" in posterity("compare", "run", "run2")
    said = posterity("predict", "run2", "new.csv", "--threshold", "0.99")
    assert "abstained from" in said
    table = pd.read_csv("new-predictions.csv")
    assert {"prediction", "confidence", "p(setosa)", "aleatoric", "epistemic", "decision"} <= set(table)
    assert len(table) == 12


def test_names_and_numbers_may_be_left_to_the_command(run):
    pd.DataFrame({"id": [0, 1], "decision": ["drop", "keep"]}).to_csv("exported.csv", index=False)
    said = posterity("adapt", "run", "--decisions", "exported.csv")  # as the map says after an export
    assert said.rstrip().endswith("run-2")
    assert "1 dropped, 0 relabelled; 79 rows now" in said
    asked = json.loads(posterity("next", "run", "new.csv", "--json"))
    assert len(asked["rows"]) == len(pd.read_csv("new.csv")) < 20


def test_tables_may_end_in_capitals_and_are_refused_before_the_work(run, monkeypatch):
    posterity("predict", "run", "new.csv", "--out", "A.CSV")
    posterity("predict", "run", "new.csv", "--out", "A.Parquet")
    pd.testing.assert_frame_equal(pd.read_csv("A.CSV"), pd.read_parquet("A.Parquet"))
    monkeypatch.setattr("posterity.runs.RunFolder.open", lambda folder: pytest.fail("opened"))
    for words, option in (
        (("predict", "run", "new.csv"), "out"),
        (("map", "run"), "out"),
        (("map", "run"), "decisions"),
    ):
        with pytest.raises(InvalidInput, match=rf"^{option}: expected a name that ends in \.csv or \.parquet"):
            posterity(*words, f"--{option}", "a.tsv")


def test_json_everywhere(run):
    fitted = json.loads(posterity("fit", "line.csv", "--target", "y", "--out", "l", "--overwrite", *QUICK, "--json"))
    assert fitted["status"] == "finished"
    assert fitted["metrics"]["rmse"] > 0
    assert len(json.loads(posterity("predict", "run", "new.csv", "--json"))["predictions"]) == 12
    assert len(json.loads(posterity("map", "run", "--json", "--top", "3"))["top"]) == 3
    drop = json.loads(posterity("map", "run", "--json", "--top", "1"))["top"][0]["id"]
    pd.DataFrame({"id": [drop], "decision": ["drop"]}).to_csv("one.csv", index=False)
    asked = json.loads(posterity("what-if", "run", "--drop", str(drop), "--json"))
    assert (asked["dropped"], asked["measured"]) == (1, None)
    assert (asked["estimate"]["change"] is None) == bool(asked["estimate"]["warning"])
    adapted = json.loads(posterity("adapt", "run", "--decisions", "one.csv", "--out", "run3", "--overwrite", "--json"))
    assert adapted["adaptation"]["removed"] == 1
    assert json.loads(posterity("compare", "run", "run3", "--json"))["rows"] == 20
    result = CliRunner().invoke(app, ["doctor", "run", "--json"])
    findings = json.loads(result.stdout)["findings"]
    assert result.exit_code == (1 if findings else 0)


def test_a_what_if_about_a_past_that_is_forgotten_in_part(run):
    flowers("more.csv", rows=12).assign(sepal_length=6.0).to_csv("more.csv", index=False)
    posterity("adapt", "run", "--add", "more.csv", "--forget", "0.5", "--out", "run4", "--overwrite")
    drop = json.loads(posterity("map", "run4", "--json", "--top", "1"))["top"][0]["id"]
    said = posterity("what-if", "run4", "--drop", str(drop))
    assert "the estimate counts each of them in full" in said
    assert "--measure" not in said


def test_a_network_trained_elsewhere(here):
    save_file({"1.weight": torch.randn(3, 5), "1.bias": torch.zeros(3)}, here / "trained.safetensors")
    said = posterity(
        "laplace", "trained.safetensors", "flowers.csv", "--model", "linear", "--target", "species", "--test", "0.2",
        "--out", "laplace-run", "--ignore", "sepal_width",
    )  # fmt: skip
    assert "Kronecker" in said
    assert "accuracy" in posterity("predict", "laplace-run", "flowers.csv")
    assert "most suspicious" in posterity("map", "laplace-run", "--top", "3")


def test_a_factory_of_the_user(here):
    (here / "mine.py").write_text(
        "from torch import nn\n\n\ndef net(inputs, outputs):\n    return nn.Sequential(nn.Linear(inputs[0], outputs))\n"
    )
    posterity("fit", "flowers.csv", "--target", "species", "--out", "own", *QUICK[2:], "--model", "mine:net")
    assert "prediction" in posterity("predict", "own", "new.csv")
    sys.path.remove(str(here))


def test_settings_that_are_words(here):
    said = posterity("fit", "flowers.csv", "--target", "species", "--out", "auto", *QUICK, "--option", "beta2=auto")
    assert "beta2 auto" in said
    assert "hess_init 1," in said


def test_a_report(run):
    said = posterity("report", "run")
    page = (run / "report.html").read_text()
    assert said.strip() == "report: run/report.html"
    assert "species" in page
    assert posterity("report", "run") == said
    assert [path.name for path in run.glob("report*")] == ["report.html"]


@pytest.mark.parametrize(
    ("words", "expected", "code"),
    [
        (("fit", "flowers.csv"), "--target", 2),
        (("fit", "flowers.csv", "--target", "size"), "a column among", 2),
        (("fit", "nothing.csv", "--target", "y"), "not there", 2),
        (("fit", "flowers.csv", "--target", "species", "--out", "run"), "--overwrite", 2),
        (("fit", "flowers.csv", "--target", "species", "--out", "z", "--model", "forest"), "one of", 2),
        (("fit", "flowers.csv", "--target", "species", "--out", "z", "--model", "os:nothing"), "a function", 2),
        (("fit", "flowers.csv", "--target", "species", "--out", "z", "--model", ":net"), "can be imported", 2),
        (("fit", "flowers.csv", "--target", "species", "--out", "z", "--model", "torn:net"), "SyntaxError", 2),
        (("fit", "flowers.csv", "--target", "species", "--out", "z", "--test", "2"), "fraction", 2),
        (("fit", "flowers.csv", "--target", "species", "--out", "z", "--hidden", "a"), "64,64", 2),
        (("fit", "flowers.csv", "--target", "species", "--out", "z", "--hidden", "8,999999999"), "at most 16777216", 2),
        (("fit", "flowers.csv", "--target", "species", "--out", "z", "--hidden", "9" * 400), "got a larger one", 2),
        (("fit", "flowers.csv", "--target", "species", "--out", "z", "--hidden", "9" * 5000), f"'{'9' * 40}'", 2),
        (("fit", "flowers.csv", "--target", "species", "--out", "z", "--batch-size", 10**24), "below 2^63", 2),
        (("fit", "flowers.csv", "--target", "species", "--out", "z", "--ignore", "species"), "than the target", 2),
        (("fit", "flowers.csv", "--target", "species", "--out", "z", "--lr", "nan"), "lr: expected a finite", 2),
        (("fit", "flowers.csv", "--target", "species", "--out", "z", "--prior", "inf"), "prior: expected a finite", 2),
        (("fit", "flowers.csv", "--target", "species", "--out", "z", "--seed", 2**64), "seed: expected", 2),
        (("fit", "flowers.csv", "--size", "0"), "size: expected a whole number >= 1", 2),
        (("fit", "."), "expected pictures", 2),
        (("fit", "flowers.csv", "--target", "species", "--out", "z", "--model", "linear", "--hidden", "8"), "none", 2),
        (("fit", "--resume", "--out", "z"), "unfinished training", 2),
        (("predict", "new.csv", "new.csv"), "expected a run", 2),
        (("predict", "run", "line.csv"), "sepal_length", 2),
        (("predict", "run", "new.csv", "--threshold", "7"), "confidence", 2),
        (("predict", "run", "new.csv", "--out", "new.csv"), "another file", 2),
        (("map", "run", "--out", "."), "a file to write", 2),
        (("predict", "run", "new.csv", "--out", "new.xlsx"), "ends in .csv or .parquet", 2),
        (("map", "run", "--out", "map.tsv"), "ends in .csv or .parquet", 2),
        (("next", "run", "new.csv", "--out", "new.json"), "ends in .csv or .parquet", 2),
        (("adapt", "run", "--out", "z"), "--decisions", 2),
        (("compare", "run", "nowhere"), "expected a run", 2),
        (("map", "run", "--by", "beauty"), "a column among", 2),
        (("map", "run", "--top", "-3"), "top: expected a whole number >= 1", 2),
        (("fit", "flowers.csv", "--target", "species", "--out", "z", "--method", "adam"), "expected auto or", 2),
        (("fit", "flowers.csv", "--target", "species", "--out", "z", "--epochs", "-1"), "epochs: expected a whole", 2),
        (("fit", "flowers.csv", "--target", "species", "--out", "z", "--lr", "-1"), "lr: expected a positive", 2),
        (("fit", "ragged.csv", "--target", "y", "--out", "z"), "got 3 cells in line 3, where the first has 2", 2),
        (("merge",), "a key 'method', or --method with one of ['dare', 'fisher'", 2),
        (("merge", "run"), "got a folder; models are given by --model NAME=PATH", 2),
        (("fit", "sheet.xlsx", "--target", "y", "--out", "z"), "got 'sheet.xlsx'; save the sheet as CSV", 2),
        (("merge", "--method", "linear", "--model", "a=hub/name", "--out", "z"), "downloaded first", 2),
        (("predict", "run", "new.csv", "--out", "/proc/none/x.csv"), "/proc/none", 3),
    ],
)  # fmt: skip
def test_mistakes_are_one_sentence(run, monkeypatch, capsys, words, expected, code):
    said, stopped = complaint(monkeypatch, capsys, *words)
    assert expected in said
    assert stopped == code


def test_debug_shows_where(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["posterity", "doctor", "nowhere", "--debug"])
    with pytest.raises(SystemExit):
        main()
    assert "Traceback" in capsys.readouterr().err


def test_an_unexpected_error_has_a_code_of_its_own(monkeypatch, capsys):
    monkeypatch.setattr("posterity.runs.doctor.examine", lambda run: 1 / 0)
    monkeypatch.setattr("posterity.runs.RunFolder.open", lambda folder: None)
    said, code = complaint(monkeypatch, capsys, "doctor", "run")
    assert code == 4
    assert "ZeroDivisionError" in said


def test_a_warning_is_a_note(monkeypatch, capsys, here):
    (here / "config.yml").write_text(
        "merge_method: linear\nmodels:\n  - {model: m, parameters: {weight: 1}}\ndtype: f\n"
    )
    monkeypatch.setattr(sys, "argv", ["posterity", "merge", "config.yml", "--out", "z"])
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with pytest.raises(SystemExit):
            main()
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("note: dtype of the mergekit configuration is not applied")
    assert len(said) == 2


def test_the_help_of_every_command_is_in_whole_lines():
    """Paragraphs of a docstring are not broken where the source is."""
    for name, command in get_command(app).commands.items():
        assert all("\n" not in part for part in command.help.split("\n\n")), name
    assert "extras plots and models" in get_command(app).commands["demo"].help


def test_a_command_that_is_stopped_says_so(monkeypatch, capsys):
    def impatient(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("posterity.runs.RunFolder.open", impatient)
    assert complaint(monkeypatch, capsys, "doctor", "run") == ("posterity: stopped", 130)


def test_help_does_not_import_torch():
    import subprocess

    code = "import sys; from posterity.cli import app; print(sorted({'torch', 'pandas', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_every_method_of_fit_is_named():
    assert set(re.findall(r"\w+", NAMED)) >= {*METHODS, "ensemble"}


def test_a_method_of_the_family(run):
    said = posterity("fit", "flowers.csv", "--target", "species", "--out", "soba", "--method", "soba", *QUICK)
    assert "with soba" in said
    posterity("predict", "soba", "new.csv", "--out", "soba.csv")
    assert len(pd.read_csv("soba.csv")) == 12
    said = posterity("map", "soba", "--top", "3", "--out", "soba-map.csv")
    assert "most suspicious" in said
