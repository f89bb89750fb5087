"""A run on disk: what was trained comes back, damaged files are refused, tables keep what they hold."""

import errno
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import posterity as po
from posterity.cli import app
from posterity.errors import RefusedFile
from posterity.learning.length import FEWEST_STEPS
from posterity.runs import RunFolder, fitting, planning, probing
from posterity.runs.config import Config
from posterity.runs.data import Data, DataSource
from posterity.runs.decisions import proposal
from posterity.runs.doctor import examine
from posterity.runs.mapping import map_run, suspects
from posterity.runs.predicting import predict_run
from posterity.runs.readers import read_rows
from posterity.runs.store import generation, read_list
from runs.problems import bits, flowers, line, plan, trained


def test_what_was_trained_comes_back(here, run):
    again = RunFolder.open(here / "run")
    again.verify()
    assert again.status == "finished"
    assert len(again.history) == 4
    assert (len(again.data("train").ids), len(again.data("test").ids)) == (120, 30)
    assert set(again.data("train").ids.tolist()).isdisjoint(again.data("test").ids.tolist())
    for name, p in again.model().named_parameters():
        assert torch.equal(p, again.posterior.mean[name])
    table = pd.read_csv(here / "flowers.csv")
    records = again.records("test")
    assert records["species"].tolist() == table["species"].iloc[records["id"]].tolist()


def test_predictions_are_those_of_the_library(run):
    test, table = run.data("test"), run.predictions
    p = po.predict(run.model(), run.posterior, test.inputs, samples=8)
    np.testing.assert_allclose(table[[f"p({name})" for name in run.class_names]], p.probs, rtol=1e-6)
    np.testing.assert_allclose(table["entropy"], table["aleatoric"] + table["epistemic"], atol=1e-6)
    assert run.metrics["accuracy"] == pytest.approx(po.metrics.accuracy(p.probs, test.targets))
    assert run.metrics["nll"] == pytest.approx(po.metrics.nll(p.probs, test.targets), rel=1e-5)


def test_few_rows_are_learnt_from(here, tmp_path):
    pd.read_csv(here / "flowers.csv").head(48).to_csv(tmp_path / "few.csv", index=False)
    asked = {"model": "mlp", "method": "ivon", "epochs": 200, "lr": None, "test": 0.5}
    ready = probing.probe(plan(tmp_path / "run", tmp_path / "few.csv", **asked))
    assert ready.config.options["prior"] == pytest.approx(0.24)
    assert fitting.train(ready).metrics["accuracy"] > 0.8


def test_new_rows(run, here):
    rows = read_rows(here / "flowers.csv")
    table, figures, notes = predict_run(run, rows, threshold=0.9)
    assert notes == []
    assert figures["accuracy"] == (table["prediction"] == rows.table["species"]).mean()
    undecided = table["decision"] == "abstain"
    assert (undecided == (table["confidence"] < 0.9)).all()
    unlabelled = rows.table.drop(columns="species").assign(colour="green")
    _, none, notes = predict_run(run, type(rows)(unlabelled))
    assert none == {}
    assert "'green'" in notes[0]
    _, some, notes = predict_run(run, type(rows)(rows.table.assign(species=["a daisy"] * 9 + ["setosa"] * 141)))
    assert some["accuracy"] == (table["prediction"][9:] == "setosa").mean()
    assert "species: 9 rows" in notes[0]


def test_amounts_come_in_their_own_units(tmp_path):
    line(tmp_path / "line.csv")
    run = trained(tmp_path / "run", tmp_path / "line.csv", target="y", epochs=60, options={"prior": 0.01})
    table = run.predictions
    assert run.metrics["rmse"] == pytest.approx(np.sqrt(((table["mean"] - table["label"]) ** 2).mean()), rel=1e-4)
    assert 0.4 < run.metrics["rmse"] < 2.0
    assert (table["lower"] < table["mean"]).all()
    assert (table["mean"] < table["upper"]).all()
    np.testing.assert_allclose(table["std"] ** 2, table["epistemic"] ** 2 + table["aleatoric"] ** 2, rtol=1e-4)
    rows = read_rows(tmp_path / "line.csv")
    _, wanted, _ = predict_run(run, type(rows)(rows.table.tail(58).reset_index(drop=True)))
    _, figures, notes = predict_run(run, type(rows)(rows.table.assign(y=["unknown", "inf", *rows.table["y"][2:]])))
    assert notes == ["y: 2 rows have no finite number; they are not compared with"]
    assert figures == pytest.approx(wanted)
    _, found = map_run(run)
    assert len(found) == 48
    assert run.records("train")["y"].astype(float).between(75, 125).all()


def test_the_memory_map_is_kept(run):
    written, found = map_run(run)
    assert len(found) == 120
    assert found.ranking == "tracked_self_influence"
    assert set(written.memory["label"]) == set(run.class_names)
    again = written.memory_map()
    pd.testing.assert_frame_equal(again.table, found.table)
    again.what_if(remove=[int(found.columns["id"][0])])  # with model and data at hand
    history = written.memory_history
    assert set(history["epoch"]) == {1, 2, 3, 4}
    last = history[history["epoch"] == 4].set_index("id")["error"]
    np.testing.assert_allclose(last[found.columns["id"]], found.columns["error"], rtol=1e-6)


def test_a_run_on_a_read_only_disk_is_mapped_and_reported(run, tmp_path, monkeypatch):
    def refused(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("posterity.runs._folder.generation", refused)
    monkeypatch.chdir(tmp_path)
    same, found = map_run(run)
    assert same is run
    assert len(found) == 120
    mapped = CliRunner().invoke(app, ["map", str(run.folder), "--out", "map.csv"])
    assert mapped.exit_code == 0, mapped.output
    assert "cannot be written, so the map is not kept" in mapped.output
    assert len(pd.read_csv("map.csv")) == 120
    reported = CliRunner().invoke(app, ["report", str(run.folder), "--json"])
    assert reported.exit_code == 0, reported.output
    assert Path(json.loads(reported.output)["report"]).read_text().startswith("<!doctype html>")


def test_predictions_keep_the_names_of_rows_and_the_truth(here, tmp_path):
    table = pd.read_csv(here / "flowers.csv").rename(columns={"species": "decision"})
    table.insert(0, "number", range(1000, 1150))
    table.to_csv(tmp_path / "flowers.csv", index=False)
    data = Data(DataSource.of(tmp_path / "flowers.csv", tmp_path), "decision", id_column="number")
    config = Config(model="linear", epochs=2, lr=0.5)
    run = fitting.train(planning.prepare(tmp_path / "run", config, data))
    found, _, _ = predict_run(run, run.read(tmp_path / "flowers.csv"), threshold=0.9)
    assert found["id"].astype(int).tolist() == table["number"].tolist()
    assert found["given"].tolist() == table["decision"].tolist()
    assert set(found["decision"]) > {"abstain"}


def test_data_that_changed_are_not_used(tmp_path):
    flowers(tmp_path / "f.csv", rows=60)
    run = trained(tmp_path / "run", tmp_path / "f.csv", epochs=1)
    moved = tmp_path / "moved"
    moved.mkdir()
    (tmp_path / "f.csv").rename(moved / "f.csv")
    (tmp_path / "run").rename(moved / "run")
    assert len(RunFolder.open(moved / "run").data("train").ids) == 48  # both went together
    (moved / "f.csv").write_text((moved / "f.csv").read_text() + "1,1,1,1,blue,setosa\n")
    with pytest.raises(RefusedFile, match="has changed"):
        RunFolder.open(moved / "run").data("train")
    assert "data" in {finding.name for finding in examine(RunFolder.open(moved / "run"))}
    assert run.status == "finished"


def test_damaged_runs_are_refused_or_the_same(run, tmp_path):

    from posterity.errors import PosterityError

    random = np.random.default_rng(0)
    wanted, history = bits(run), run.history
    names = [path for path in sorted(run.folder.rglob("*")) if path.is_file() and not path.name.startswith(".")]
    refused = 0
    for number in range(60):
        folder = tmp_path / "copy"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(run.folder, folder)
        path = folder / names[number % len(names)].relative_to(run.folder)
        data = bytearray(path.read_bytes())
        if number % 3 == 0:
            data = data[: random.integers(len(data))]
        else:
            data[random.integers(len(data))] ^= 1 << random.integers(8)
        path.write_bytes(bytes(data))
        try:
            found = RunFolder.open(folder)
            found.verify()
            assert all(torch.equal(bits(found)[name], value) for name, value in wanted.items())
            assert found.history == history
        except PosterityError:
            refused += 1
    assert refused == 60


def test_what_run_json_says(run):
    written = json.loads((run.folder / "run.json").read_text())
    assert {"config", "data", "preprocessing", "metrics", "status", "versions"} <= written["content"].keys()
    assert written["content"]["config"]["seed"] == 0
    assert all(len(entry["sha256"]) == 64 for entry in written["files"].values())
    assert plan(run.folder, run.folder.parent / "flowers.csv").config.track


def test_tables_are_read_without_pyarrow_and_classes_stay_words(tmp_path, monkeypatch):
    table = pd.DataFrame({"x": np.arange(40.0), "y": ["NO" if i < 20 else "1" for i in range(40)]})
    table.to_csv(tmp_path / "t.csv", index=False)
    run = trained(tmp_path / "run", tmp_path / "t.csv", target="y")
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as where it is not installed
    read = RunFolder.open(tmp_path / "run").predictions
    assert set(read["label"]) <= {"NO", "1"}
    assert read["id"].dtype == np.int64
    assert [path.name for path in run.folder.glob("predictions*")] == ["predictions.csv"]
    run, _ = map_run(run)
    known = run.memory["suspected_label"].dropna()
    assert set(known) <= {"NO", "1"}


def test_tables_of_earlier_versions_are_read(here, tmp_path):
    run = trained(tmp_path / "run", here / "flowers.csv")
    table = run.predictions
    for name, write in (("predictions.parquet", table.to_parquet), ("predictions.csv", table.to_csv)):
        write(tmp_path / name, index=False)
        with generation(run.folder, lambda: read_list(run.folder)) as new:
            new.drop("predictions.csv")
            new.drop("predictions.parquet")
            new.write(name, (tmp_path / name).read_bytes())
            new.content.pop("tables", None)  # which earlier versions did not write
        pd.testing.assert_frame_equal(RunFolder.open(run.folder).predictions, table)


def test_cross_validation_decides_how_long_to_train_and_which_labels_are_wrong(here, tmp_path):
    table = pd.read_csv(here / "flowers.csv")
    wrong = table.index[::15]
    table.loc[wrong, "species"] = table.loc[wrong, "species"].map(
        {"setosa": "virginica", "versicolor": "setosa", "virginica": "setosa"}
    )
    table.to_csv(tmp_path / "t.csv", index=False)
    ready = probing.probe(plan(tmp_path / "run", tmp_path / "t.csv", model="mlp", epochs=None, lr=None, test=None))
    assert ready.folds is not None
    assert ready.folds.memorises
    assert ready.config.epochs < FEWEST_STEPS // 5
    run, found = map_run(fitting.train(ready))
    assert found.ranking == "label_error"
    decided = proposal(suspects(run, found, 20))
    marked = decided[decided["decision"] != "keep"]
    assert set(marked["decision"]) <= {"relabel", "drop"}
    assert len(set(marked["id"]) & set(wrong)) > len(marked) / 2 > 2
    assert (run.memory["label_error"].between(0, 1)).all()
