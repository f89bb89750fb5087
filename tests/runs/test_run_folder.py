"""A run on disk: what was trained comes back, to the bit, and goes on where it stopped."""

import errno
import json
import os
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
from posterity.errors import InvalidInput, RefusedFile
from posterity.learning import Callback
from posterity.learning.length import FEWEST_STEPS
from posterity.runs import RunFolder, fitting
from posterity.runs.adapting import adapt_run
from posterity.runs.comparing import compare_runs
from posterity.runs.data import Data, DataSource
from posterity.runs.decisions import RowDecisions, proposal
from posterity.runs.doctor import examine
from posterity.runs.mapping import map_run, suspects
from posterity.runs.predicting import predict_run
from posterity.runs.readers import read_rows
from posterity.runs.store import generation, read_list
from runs.problems import flowers, line, plan, trained


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flowers")
    flowers(folder / "flowers.csv")
    return folder


@pytest.fixture(scope="module")
def run(here):
    return trained(here / "run", here / "flowers.csv")


def bits(run):
    return {name: t.clone() for name, t in run.posterior.structure.tensors().items()}


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
    ready = fitting.probe(plan(tmp_path / "run", tmp_path / "few.csv", model="mlp", epochs=200, lr=None, test=0.5))
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


class Impatient(Callback):
    def __init__(self, step):
        self.at = step

    def step(self, moment):
        if moment.step == self.at:
            raise KeyboardInterrupt


@pytest.mark.parametrize("step", [1, 4, 7, 15])
def test_resume_is_exact(here, run, tmp_path, monkeypatch, step):
    real = fitting.fit
    interrupted = lambda *a, callbacks, **k: real(*a, callbacks=[Impatient(step), *callbacks], **k)  # noqa: E731
    monkeypatch.setattr(fitting, "fit", interrupted)
    stopped = trained(tmp_path / "run", here / "flowers.csv")
    monkeypatch.undo()
    assert stopped.status == "interrupted"
    assert predict_run(stopped, read_rows(here / "flowers.csv"))[1]["accuracy"] > 0  # usable as it is
    resumed = fitting.train(fitting.reopen(tmp_path / "run"))
    assert resumed.status == "finished"
    for name, value in bits(run).items():
        assert torch.equal(bits(resumed)[name], value), name
    assert resumed.predictions.equals(run.predictions)
    assert resumed.memory_history.equals(run.memory_history)
    with pytest.raises(RefusedFile, match="unfinished training"):
        fitting.reopen(tmp_path / "run")


class KeepEach(Callback):
    """A copy of the folder of a training, as it was after each step."""

    def __init__(self, folder):
        self.folder = folder

    def step(self, moment):
        if moment.step > 1:
            shutil.copytree(self.folder, self.folder.with_name(f"run-{moment.step - 1}"))


def test_the_command_resumes_to_the_bit_after_any_of_fifty_steps(here, tmp_path, monkeypatch):
    """A power cut after each step in `make nightly`, after some of them otherwise."""
    shutil.copy(here / "flowers.csv", tmp_path)
    monkeypatch.chdir(tmp_path)
    real, keep = fitting.fit, KeepEach(tmp_path / "run")
    monkeypatch.setattr(fitting, "fit", lambda *a, callbacks, **k: real(*a, callbacks=[*callbacks, keep], **k))
    command = "fit flowers.csv --target species --out run --model linear --epochs 5 --batch-size 12 --lr 0.5 --test 0.2"
    done = CliRunner().invoke(app, command.split(), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    monkeypatch.setattr(fitting, "fit", real)
    whole = RunFolder.open(tmp_path / "run")
    assert whole.content["steps"] == 50
    for step in range(1, 50) if "POSTERITY_NIGHTLY" in os.environ else (1, 19, 20, 49):
        done = CliRunner().invoke(app, ["fit", "--resume", "--out", f"run-{step}"], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        resumed = RunFolder.open(tmp_path / f"run-{step}")
        assert all(torch.equal(bits(resumed)[name], value) for name, value in bits(whole).items()), step
        assert resumed.predictions.equals(whole.predictions)


def test_ensembles_resume_too(here, tmp_path, monkeypatch):
    settings = {"method": "ensemble", "options": {"members": 2}, "lr": 0.01}
    whole = trained(tmp_path / "whole", here / "flowers.csv", **settings)
    first, second = whole.posterior.structure.members
    assert not torch.equal(first["1.weight"], second["1.weight"])
    real = fitting.fit
    interrupted = lambda *a, callbacks, **k: real(*a, callbacks=[Impatient(7), *callbacks], **k)  # noqa: E731
    monkeypatch.setattr(fitting, "fit", interrupted)
    assert trained(tmp_path / "run", here / "flowers.csv", **settings).status == "interrupted"
    monkeypatch.undo()
    resumed = fitting.train(fitting.reopen(tmp_path / "run"))
    for member, wanted in zip(resumed.posterior.structure.members, (first, second)):
        assert all(torch.equal(member[name], value) for name, value in wanted.items())


def test_a_training_under_way_is_no_run_yet(here, tmp_path, monkeypatch):
    def killed(*_, **__):
        raise MemoryError

    monkeypatch.setattr(fitting, "fit", killed)
    with pytest.raises(MemoryError):
        trained(tmp_path / "run", here / "flowers.csv")
    monkeypatch.undo()
    with pytest.raises(RefusedFile, match="fit --resume"):
        RunFolder.open(tmp_path / "run")
    assert fitting.train(fitting.reopen(tmp_path / "run")).status == "finished"


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


def test_decisions(run, tmp_path):
    _, found = map_run(run)
    proposal(suspects(run, found, 10)).to_csv(tmp_path / "d.csv", index=False)
    decided = RowDecisions.read(tmp_path / "d.csv")
    assert len(decided.kept) + len(decided.dropped) == 10
    for wrong, why in (
        ("id,decision\n1,burn\n", "a decision among"),
        ("id,decision,label\n1,relabel,\n", "the new label"),
        ("id,decision\n1,drop\n1,keep\n", "one decision"),
        ("id\n1\n", "the columns"),
        ("id,decision\nx,keep\n", "whole number"),
    ):
        (tmp_path / "d.csv").write_text(wrong)
        with pytest.raises(InvalidInput, match=why):
            RowDecisions.read(tmp_path / "d.csv")
    labels = pd.DataFrame({"id": [1.0, 2.0], "decision": "relabel", "label": ["1.0", " None "]})
    labels.to_csv(tmp_path / "d.csv", index=False)
    assert RowDecisions.read(tmp_path / "d.csv").relabelled == {1: "1.0", 2: "None"}
    labels.assign(label=[1.0, 2.5]).to_parquet(tmp_path / "d.parquet")
    assert RowDecisions.read(tmp_path / "d.parquet").relabelled == {1: "1", 2: "2.5"}


def test_decisions_about_amounts(tmp_path):
    line(tmp_path / "line.csv").assign(decision=["to be", "or not"] * 30).to_csv(tmp_path / "line.csv", index=False)
    run = trained(tmp_path / "run", tmp_path / "line.csv", target="y")
    _, found = map_run(run)
    proposal(suspects(run, found, 5)).to_csv(tmp_path / "d.csv", index=False)
    assert len(RowDecisions.read(tmp_path / "d.csv").kept) == 5  # without labels to suspect, nothing is to be dropped


def test_a_class_that_only_held_out_rows_have(run, here, tmp_path):
    table = pd.read_csv(here / "flowers.csv")
    lonely = run.data("test").ids[0].item()
    table.loc[lonely, "species"] = "unheard of"
    table.to_csv(tmp_path / "flowers.csv", index=False)
    found = trained(tmp_path / "run", tmp_path / "flowers.csv")
    assert found.class_names == run.class_names
    assert any("1 held-out rows" in note for note in found.content["notes"])
    wanted = [i for i in run.data("test").ids.tolist() if i != lonely]
    assert found.data("test").ids.tolist() == found.predictions["id"].tolist() == found.records("test")["id"].tolist()
    assert found.predictions["id"].tolist() == wanted


def test_adapting_changes_the_rows(run, here, tmp_path):
    ids = run.data("train").ids.tolist()
    new = pd.read_csv(here / "flowers.csv").head(5).assign(species="a new one")
    new.to_csv(tmp_path / "new.csv", index=False)
    decisions = RowDecisions((ids[0],), (ids[1], ids[2]), {ids[3]: "setosa"})
    adapted, report, _ = adapt_run(run, tmp_path / "b", add=tmp_path / "new.csv", decisions=decisions)
    assert report.exact
    assert adapted.class_names == (*run.class_names, "a new one")
    records = adapted.records("train").set_index("id")
    assert len(records) == 120 - 2 + 5 == adapted.posterior.n
    assert records.loc[ids[3], "species"] == "setosa"
    assert ids[1] not in records.index
    assert (records["species"] == "a new one").sum() == 5
    assert min(records.index[-5:]) == 150  # after every row of the old file
    again, _, _ = adapt_run(adapted, tmp_path / "c", decisions=RowDecisions((), (150,), {}))
    assert len(again.data("train").ids) == 122
    assert RunFolder.open(run.folder).data("train").ids.tolist() == ids


def test_ids_of_dropped_rows_are_not_given_again(run, here, tmp_path):
    pd.read_csv(here / "flowers.csv").head(4).to_csv(tmp_path / "new.csv", index=False)
    last = [i for i in range(140, 150) if i in run.data("train").ids]
    fewer, _, _ = adapt_run(run, tmp_path / "b", decisions=RowDecisions((), tuple(last), {}))
    more, _, _ = adapt_run(fewer, tmp_path / "c", add=tmp_path / "new.csv")
    assert more.data("train").ids[-4:].tolist() == [150, 151, 152, 153]
    less, _, _ = adapt_run(more, tmp_path / "d", decisions=RowDecisions((), (152, 153), {}))
    pd.read_csv(here / "flowers.csv").tail(4).to_csv(tmp_path / "newer.csv", index=False)
    again, _, _ = adapt_run(less, tmp_path / "e", add=tmp_path / "newer.csv")
    assert again.data("train").ids[-6:].tolist() == [150, 151, 154, 155, 156, 157]
    assert len(again.data("train").ids) == again.posterior.n == 120 - len(last) + 6


def test_rows_are_not_added_twice(run, here, tmp_path):
    pd.read_csv(here / "flowers.csv").head(4).to_csv(tmp_path / "new.csv", index=False)
    more, _, _ = adapt_run(run, tmp_path / "more", add=tmp_path / "new.csv")
    tested = {"source": vars(DataSource.of(tmp_path / "new.csv", tmp_path))}
    apart = fitting.train(plan(tmp_path / "apart", here / "flowers.csv", test=tested))
    for known, rows in ((run, here / "flowers.csv"), (more, tmp_path / "new.csv"), (apart, tmp_path / "new.csv")):
        with pytest.raises(InvalidInput, match="expected new rows"):
            adapt_run(known, tmp_path / "again", add=rows)


def test_an_adapted_run_moves_together_with_its_data(tmp_path):
    (tmp_path / "there").mkdir()
    flowers(tmp_path / "there" / "flowers.csv")
    flowers(tmp_path / "there" / "new.csv", rows=5)
    run = trained(tmp_path / "there" / "run", tmp_path / "there" / "flowers.csv")
    deep = tmp_path / "there" / "runs" / "of" / "today"
    adapt_run(run, deep, add=tmp_path / "there" / "new.csv")
    (tmp_path / "there").rename(tmp_path / "here")
    assert len(RunFolder.open(tmp_path / "here" / "runs" / "of" / "today").data("train").ids) == 125


def test_adapting_by_rows_that_are_not_there(run, tmp_path):
    test = run.data("test").ids.tolist()[0]
    with pytest.raises(InvalidInput, match="ids of training rows"):
        adapt_run(run, tmp_path / "b", decisions=RowDecisions((), (test,), {}))
    with pytest.raises(InvalidInput, match="another folder"):
        adapt_run(run, run.folder, decisions=RowDecisions((), (test,), {}))


def test_comparing(run, here, tmp_path):
    same = compare_runs(run, run)
    assert same.nll_change == 0
    assert same.rows == 30
    other = trained(tmp_path / "other", here / "flowers.csv", epochs=1, lr=0.001)
    found = compare_runs(other, run)
    change = run.predictions["nll"] - other.predictions["nll"]
    assert found.nll_change == pytest.approx(change.mean())
    assert found.standard_error == pytest.approx(change.std() / np.sqrt(30))
    assert "the second is better" in found.verdict
    assert found.settings["epochs"] == (1, 4)


def test_comparing_pairs_the_same_rows(run, here, tmp_path):
    table = pd.read_csv(here / "flowers.csv")
    held_out = {"source": vars(DataSource.of(here / "flowers.csv", tmp_path))}
    made = []
    for rows in (60, 100):  # other training files, the same file to test with
        table.head(rows).to_csv(tmp_path / f"{rows}.csv", index=False)
        ready = plan(tmp_path / f"run {rows}", tmp_path / f"{rows}.csv", test=held_out)
        made.append(fitting.train(ready))
    found = compare_runs(*made)
    change = made[1].predictions["nll"] - made[0].predictions["nll"]  # row by row, in the order of the file
    assert found.rows == 150
    assert found.nll_change == pytest.approx(change.mean())
    with pytest.raises(InvalidInput, match="of the same file"):
        compare_runs(run, trained(tmp_path / "elsewhere", tmp_path / "60.csv"))


def test_predictions_keep_the_names_of_rows_and_the_truth(here, tmp_path):
    table = pd.read_csv(here / "flowers.csv").rename(columns={"species": "decision"})
    table.insert(0, "number", range(1000, 1150))
    table.to_csv(tmp_path / "flowers.csv", index=False)
    data = Data(DataSource.of(tmp_path / "flowers.csv", tmp_path), "decision", id_column="number")
    config = fitting.Config(model="linear", epochs=2, lr=0.5)
    run = fitting.train(fitting.prepare(tmp_path / "run", config, data))
    found, _, _ = predict_run(run, run.read(tmp_path / "flowers.csv"), threshold=0.9)
    assert found["id"].astype(int).tolist() == table["number"].tolist()
    assert found["given"].tolist() == table["decision"].tolist()
    assert set(found["decision"]) > {"abstain"}


def test_the_doctor(here, tmp_path):
    noisy = {"ess": 1.0, "hess_init": 0.1, "prior": 0.1, "beta2": 0.99999}
    ill = trained(tmp_path / "a", here / "flowers.csv", epochs=1, lr=1e-4, options=noisy)
    found = {finding.name for finding in examine(ill)}
    assert {"ess", "noise", "hessian"} <= found
    good = trained(tmp_path / "b", here / "flowers.csv", epochs=60, test=0.5)
    assert not {"ess", "noise", "hessian", "files", "data"} & {finding.name for finding in examine(good)}
    untested = trained(tmp_path / "c", here / "flowers.csv", test=0)
    assert "untested" in {finding.name for finding in examine(untested)}
    (tmp_path / "c" / "model.safetensors").write_bytes(b"damaged")
    assert [finding.name for finding in examine(untested)] == ["files"]


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
    import shutil

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
    ready = fitting.probe(plan(tmp_path / "run", tmp_path / "t.csv", model="mlp", epochs=None, lr=None, test=None))
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
