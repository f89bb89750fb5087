"""`posterity next`: from a run and a pool to rows to label, and back into the run."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from posterity.cli import app
from posterity.errors import PosterityError
from posterity.runs import RunFolder


def invoke(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("next")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2)) + np.repeat([[2, 0], [-2, 0]], 100, axis=0)
    table = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "kind": ["right"] * 100 + ["left"] * 100})
    table = table.sample(frac=1, random_state=0)
    table[:60].to_csv(where / "train.csv", index=False)
    table[60:].drop(columns="kind").to_csv(where / "pool.csv", index=False)
    table[60:].to_csv(where / "truth.csv", index=False)
    fit = ("--target", "kind", "--model", "linear", "--method", "laplace", "--epochs", 100, "--lr", 0.05, "--test", 0)
    assert invoke("fit", where / "train.csv", *fit, "--out", where / "run").exit_code == 0
    return where


def test_rows_to_label_go_back_into_the_run(folder):
    out = folder / "ask.csv"
    said = invoke("next", folder / "run", folder / "pool.csv", "-k", 8, "--criterion", "margin", "--out", out).output
    assert "posterity adapt" in said
    asked = pd.read_csv(out)
    assert list(asked.columns[:3]) == ["kind", "a", "b"]
    assert len(asked) == 8
    assert asked["kind"].isna().all()
    assert asked["why"].str.contains("left").all()
    pool, truth = pd.read_csv(folder / "pool.csv"), pd.read_csv(folder / "truth.csv")
    np.testing.assert_allclose(asked["a"], pool["a"][asked["row"]])
    assert asked["a"].abs().mean() < 0.5 * pool["a"].abs().mean()  # near the border between the two kinds
    asked["kind"] = truth["kind"][asked["row"]].to_numpy()
    asked.to_csv(folder / "labelled.csv", index=False)
    adapted = invoke("adapt", folder / "run", "--add", folder / "labelled.csv", "--out", folder / "run-2")
    assert "8 rows added" in adapted.output


@pytest.mark.parametrize("criterion", ["margin", "entropy"])
def test_round_after_round(folder, tmp_path, monkeypatch, criterion):
    monkeypatch.chdir(tmp_path)
    truth, run, asked = pd.read_csv(folder / "truth.csv"), folder / "run", []
    for k, name in enumerate(("pool-next.csv", "pool-next-2.csv", "pool-next-3.csv"), 1):
        invoke("next", run, folder / "pool.csv", "-k", 5, "--criterion", criterion)
        table = pd.read_csv(name)
        asked += table["row"].tolist()
        table.assign(kind=truth["kind"][table["row"]].to_numpy()).to_csv(name, index=False)
        assert invoke("adapt", run, "--add", name, "--out", f"run-{k}").exit_code == 0
        run = tmp_path / f"run-{k}"
    assert len(set(asked)) == 15  # a row near the border stays near it, but has its label
    assert invoke("map", run).exit_code == 0  # reads all that was labelled


def test_copies_are_asked_for_as_often_as_there_are(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pool = pd.read_csv(folder / "pool.csv")
    pool.iloc[[0, 0, 0]].to_csv("copies.csv", index=False)
    pool.iloc[:1].assign(kind="left").to_csv("one.csv", index=False)
    invoke("adapt", folder / "run", "--add", "one.csv", "--out", "more")
    answer = json.loads(invoke("next", "more", "copies.csv", "-k", 2, "--json").stdout)
    assert sorted(row["id"] for row in answer["rows"]) == [1, 2]
    assert answer["notes"] == ["pool: 1 rows are in the run already; they are not asked for again"]


def test_labels_are_not_written_over(folder, tmp_path):
    (tmp_path / "labels.csv").write_text("kind,a,b\nleft,1,2\n")
    with pytest.raises(PosterityError, match="out: expected a new file"):
        invoke("next", folder / "run", folder / "pool.csv", "--out", tmp_path / "labels.csv")
    with pytest.raises(PosterityError, match="decisions: expected a new file"):
        invoke("map", folder / "run", "--decisions", tmp_path / "labels.csv")
    assert (tmp_path / "labels.csv").read_text() == "kind,a,b\nleft,1,2\n"


def test_what_is_said_to_come_next_works_for_pictures(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pixels, labels = load_digits(n_class=3, return_X_y=True)
    for number, (picture, label) in enumerate(zip(pixels[:90], labels)):
        path = tmp_path / ("pool" if number >= 60 else f"my digits/{label}") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((picture.reshape(8, 8) * 15).astype(np.uint8)).save(path)
    fit = ("--model", "linear", "--epochs", 20, "--lr", 0.5, "--hess-init", 1, "--test", 0)
    assert invoke("fit", "my digits", *fit).exit_code == 0
    run = "my digits-run"
    for round in (1, 2):
        said = invoke("next", run, "pool", "-k", 6).output.splitlines()
        ask = re.fullmatch(r"to label, in the column 'label': (.*)", said[-2])[1]
        table = pd.read_csv(ask)
        table["label"] = [str(labels[int(name.removesuffix(".png"))]) for name in table["file"]]
        table.to_csv(ask, index=False)
        words = shlex.split(said[-1].removeprefix("then: posterity "))
        assert "6 rows added" in invoke(*words).output
        run = words[-1]
        inputs, targets, ids = RunFolder.open(run).data("train")
        assert (len(ids), int(ids[-1])) == (60 + 6 * round, 59 + 6 * round)
        assert targets[-6:].tolist() == table["label"].astype(int).tolist()
        fresh = RunFolder.open(run).preprocessing.inputs(RunFolder.open(run).read(Path("pool")), [])
        assert torch.equal(inputs[-6:], fresh[table["row"].tolist()])


def test_amounts_are_said_in_their_units(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x = np.linspace(-1, 1, 60)
    table = pd.DataFrame({"x": x, "price": 50_000 + 1000 * x})
    table.to_csv("train.csv", index=False)
    table[["x"]].assign(x=3 * x).to_csv("pool.csv", index=False)
    fit = ("--target", "price", "--model", "linear", "--method", "laplace", "--epochs", 50, "--lr", 0.05, "--test", 0)
    invoke("fit", "train.csv", *fit)
    answer = json.loads(invoke("next", "train-run", "pool.csv", "-k", 4, "--json").stdout)
    invoke("predict", "train-run", "pool.csv")
    predicted = pd.read_csv("pool-predictions.csv").set_index("id")
    for row in answer["rows"]:
        mean, std = re.match(r"(\d+) ± (\S+); its label gives", row["why"]).groups()
        assert float(mean) == pytest.approx(predicted.loc[row["id"], "mean"], abs=0.5)
        assert float(std) == pytest.approx(predicted.loc[row["id"], "std"], rel=1e-3)


def test_columns_of_the_data_keep_their_values(folder):
    renamed = {"a": "score", "b": "row", "kind": "why"}
    for name in ("train", "pool"):
        pd.read_csv(folder / f"{name}.csv").rename(columns=renamed).to_csv(folder / f"{name}-2.csv", index=False)
    fit = ("--target", "why", "--model", "linear", "--method", "laplace", "--epochs", 20, "--lr", 0.05, "--test", 0)
    assert invoke("fit", folder / "train-2.csv", *fit, "--out", folder / "named").exit_code == 0
    assert invoke("next", folder / "named", folder / "pool-2.csv", "-k", 5, "--out", folder / "5.csv").exit_code == 0
    asked, pool = pd.read_csv(folder / "5.csv"), pd.read_csv(folder / "pool-2.csv")
    for name in ("score", "row"):
        np.testing.assert_allclose(asked[name], pool[name][asked["next_row"]])
    assert asked["why"].isna().all()


def test_json_and_rows_that_have_a_label(folder):
    half = pd.read_csv(folder / "truth.csv")
    half.loc[:129, "kind"] = None
    half.to_csv(folder / "half.csv", index=False)
    arguments = ("next", folder / "run", folder / "half.csv", "-k", 130, "--out", folder / "all.csv", "--json")
    answer = json.loads(invoke(*arguments, "--criterion", "random").output)
    assert sorted(row["id"] for row in answer["rows"]) == list(range(130))
    with pytest.raises(PosterityError, match=r"k: expected a number of examples in 1..130"):
        invoke("next", folder / "run", folder / "half.csv", "-k", 131)
    with pytest.raises(PosterityError, match="expected rows without a value of kind"):
        invoke("next", folder / "run", folder / "truth.csv")
