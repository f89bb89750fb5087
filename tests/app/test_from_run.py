"""A run in the browser's terms: from a file to the page, and after an adaptation predicted against actual."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn.functional import cross_entropy
from typer.testing import CliRunner

from posterity.app import write_html
from posterity.app.from_run import from_run
from posterity.app.pictures import png
from posterity.cli import app
from posterity.runs import RunFolder


def command(*words):
    found = CliRunner().invoke(app, [str(word) for word in words])
    assert found.exit_code == 0, found.output
    return found.output


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run on flowers with two wrong labels, the map as a page, and the run after dropping and relabelling."""
    from sklearn.datasets import load_iris

    folder = tmp_path_factory.mktemp("flowers")
    table = load_iris(as_frame=True).frame.sample(frac=1, random_state=0).reset_index(drop=True)
    table["flower"] = table.pop("target").map({0: "setosa", 1: "versicolor", 2: "virginica"})
    table.to_csv(folder / "iris.csv", index=False)
    how = ("--model", "linear", "--epochs", 6, "--prior", 10)
    command("fit", folder / "iris.csv", "--target", "flower", *how, "--out", folder / "run")
    command("map", folder / "run", "--html", folder / "map.html")
    first = RunFolder.open(folder / "run").data("train").ids[:3].tolist()
    decisions = f"id,decision,label\n{first[0]},drop,\n{first[1]},relabel,setosa\n{first[2]},keep,\n"
    (folder / "run" / "decisions.csv").write_text(decisions)
    command("adapt", folder / "run", "--decisions", folder / "run" / "decisions.csv", "--out", folder / "next")
    return folder, first


def test_a_run_brings_everything(runs):
    folder, first = runs
    source = from_run(folder / "run")
    assert source.classes == ("setosa", "versicolor", "virginica")
    assert source.kind == "row"
    assert set(source.curves) >= {"epoch", "train"}
    assert {one["decision"] for one in _decisions(source)} == {"drop", "relabel", "keep"}
    rows = pd.read_csv(folder / "iris.csv").drop(columns="flower")
    shown = source.preview(first[0]).content
    assert {name: cell["value"] for name, cell in shown.items()} == pytest.approx(rows.loc[first[0]].to_dict())
    z = (rows.loc[first[0]] - rows.loc[source.table["id"]].mean()) / rows.loc[source.table["id"]].std()
    assert [cell["z"] for cell in shown.values()] == pytest.approx(z.tolist())


def test_codes_stay_as_they_are_written_and_infinite_numbers_are_far_from_nothing(tmp_path):
    n = 40
    table = pd.DataFrame({"zip": ["01067", "80331"] * (n // 2), "x": np.linspace(-1, 1, n), "y": ["a", "b"] * (n // 2)})
    table.loc[3, "x"] = np.inf
    table.to_csv(tmp_path / "codes.csv", index=False)
    command("fit", tmp_path / "codes.csv", "--target", "y", "--test", 0, "--epochs", 2, "--out", tmp_path / "run")
    show = from_run(tmp_path / "run").preview
    assert [show(k).content["zip"]["value"] for k in (0, 1)] == ["01067", "80331"]
    known = table["x"].drop(3)
    assert show(3).content["x"] == {"value": "inf", "z": None}
    assert show(0).content["x"]["z"] == pytest.approx((table["x"][0] - known.mean()) / known.std())
    command("report", tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "<td>80331</td>" in page
    assert "80,331" not in page


def test_an_open_run_is_not_read_again(runs, monkeypatch, tmp_path):
    run = RunFolder.open(runs[0] / "run")
    kept = run.memory_map()
    wanted = from_run(runs[0] / "run")

    def refused(*_):
        raise AssertionError("read again")

    for name in ("open", "memory_map", "model"):
        monkeypatch.setattr(RunFolder, name, refused)
    pd.testing.assert_frame_equal(from_run(run, memory=kept).table, wanted.table)
    assert write_html(run, tmp_path / "map.html", memory=kept).stat().st_size > 10_000


def _decisions(source):
    from posterity.app.page import Page

    return Page(source).about()["decisions"]


def test_predicted_against_actual(runs):
    folder, _ = runs
    source = from_run(folder / "next")
    before, after = (RunFolder.open(folder / name) for name in ("run", "next"))
    x, y, _ = before.data("test")
    with torch.no_grad():
        losses = [cross_entropy(run.model()(x), y, reduction="none").numpy() for run in (before, after)]
    np.testing.assert_allclose(source.outcome["actual"], losses[1] - losses[0], atol=1e-5)
    assert np.corrcoef(source.outcome["predicted"], source.outcome["actual"])[0, 1] > 0.5
    assert source.beside_title == "run"


def test_what_if_speaks_of_amounts_in_their_units(tmp_path):
    x = np.linspace(-1, 1, 60)
    pd.DataFrame({"x": x, "price": 50_000 + 1000 * x}).to_csv(tmp_path / "prices.csv", index=False)
    how = ("--model", "linear", "--method", "laplace", "--epochs", 50, "--lr", 0.05)
    command("fit", tmp_path / "prices.csv", "--target", "price", *how, "--out", tmp_path / "run")
    run = RunFolder.open(tmp_path / "run")
    source, test, target = from_run(tmp_path / "run"), run.data("test"), run.preprocessing.target
    first = int(source.table["id"][0])
    new = target.encode(pd.Series([51_000.0]))[0]
    wanted = run.memory_map().what_if(relabel={first: new}).on(test)
    found = source.what_if([], {first: 51_000.0})
    assert found.loss_after == pytest.approx(wanted.loss_after.mean().item())
    for one in found.moved:
        assert one["label"] == pytest.approx(target.decode(test.targets[one["id"], 0].item()))
        assert one["before"] == pytest.approx(target.decode(wanted.before[one["id"], 0].item()))
        assert one["after"] == pytest.approx(target.decode(wanted.after[one["id"], 0].item()))
    assert source.what_if([first], {}).loss_before == pytest.approx(found.loss_before)


def test_test_examples_have_the_ids_of_the_data_and_decisions_their_command(runs):
    folder, _ = runs
    source = from_run(folder / "run")
    assert source.test["id"].tolist() == RunFolder.open(folder / "run").data("test").ids.tolist()
    assert source.adapt == f"posterity adapt {folder / 'run'} --decisions {folder / 'run' / 'decisions.csv'}"


def test_pictures_are_called_by_their_files(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for k in range(8):
            pixels = rng.integers(0, 255, (6, 6), dtype=np.uint8)
            (tmp_path / "pets" / name / f"{k}.png").write_bytes(png(pixels))
    how = ("--model", "linear", "--epochs", 2)
    command("fit", tmp_path / "pets", *how, "--out", tmp_path / "run")
    source = from_run(tmp_path / "run")
    found = {**dict(zip(source.table["id"], source.names)), **dict(zip(source.test["id"], source.test_names))}
    assert sorted(found.values()) == sorted(f"{name}/{k}.png" for name in ("cat", "dog") for k in range(8))
    labels = source.table.set_index("id")["label"]
    assert all(found[i].startswith(source.classes[label]) for i, label in labels.items())


def test_the_page_of_a_run(runs):
    folder, _ = runs
    text = (folder / "map.html").read_text()
    assert text.count("<script") == 5
    assert "http:" not in text.replace("http://www.w3.org/", "")
