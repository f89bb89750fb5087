"""From every kind of file to a run and its answers, and mistakes that must cost nothing."""

import json
import shlex
import struct
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from posterity.app.run_report import contents
from posterity.cli import app
from posterity.errors import InvalidInput, RefusedFile
from posterity.files import read_sealed, write_sealed
from posterity.runs import RunFolder, planning
from posterity.runs.data import DataSource
from posterity.runs.readers import picture_files
from runs.problems import flowers, line

QUICK = ("--model", "linear", "--epochs", 3, "--folds", 0, "--lr", 0.5, "--hess-init", 1)


@pytest.fixture(autouse=True)
def inside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def posterity(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def digits(count=120):
    pixels, labels = load_digits(return_X_y=True)
    return (pixels[:count] * 15).astype(np.uint8).reshape(-1, 8, 8), labels[:count].astype(np.uint8)


def as_idx(folder):
    for name, array in zip(("train-images-idx3-ubyte", "train-labels-idx1-ubyte"), digits()):
        header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
        (folder / name).write_bytes(header + array.tobytes())
    return "train-images-idx3-ubyte"


def as_pictures(folder):
    for number, (picture, label) in enumerate(zip(*digits())):
        path = folder / "pictures" / str(label) / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(path)
    return "pictures"


def as_arrays(folder):
    images, labels = digits()
    np.savez(folder / "digits.npz", images=images, label=labels)
    return "digits.npz"


@pytest.mark.parametrize("written", [as_idx, as_pictures, as_arrays])
def test_pictures_are_learnt_whatever_they_come_in(inside, written):
    data = written(inside)
    told = json.loads(posterity("fit", data, "--out", "run", *QUICK, "--json"))
    assert told["metrics"]["accuracy"] > 0.6  # a guess has 0.1
    posterity("predict", "run", data, "--out", "answers.csv")
    answers = pd.read_csv(inside / "answers.csv")
    assert (answers["prediction"] == answers["label"]).mean() > 0.7
    posterity("report", "run")
    assert "data:image/png" in RunFolder.open("run").path("report.html").read_text()


def test_new_pictures_are_brought_to_the_form_of_the_old(inside):
    data = as_pictures(inside)
    told = json.loads(posterity("fit", data, "--out", "run", *QUICK, "--json"))
    pictures, labels = digits()
    for number in range(20):
        path = inside / "new" / str(labels[number]) / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pictures[number]).convert("RGB").resize((24, 24), Image.Resampling.BOX).save(path)
    Image.new("RGB", (30, 20), (200, 20, 90)).save(inside / "new" / "0" / "in colour.png")
    posterity("predict", "run", "new", "--out", "answers.csv")
    answers = pd.read_csv(inside / "answers.csv")
    assert (answers["prediction"] == answers["label"]).mean() > 0.7
    assert answers["file"].tolist() == sorted(path.relative_to("new").as_posix() for path in Path("new").rglob("*.png"))
    posterity("predict", "run", "new/0/in colour.png", "--out", "one.csv")
    one = pd.read_csv(inside / "one.csv")
    assert one["file"].tolist() == ["in colour.png"]
    assert one["confidence"].item() == pytest.approx(answers.set_index("file").loc["0/in colour.png", "confidence"])
    posterity("adapt", "run", "--add", "new", "--out", "more")
    assert RunFolder.open("more").data("train").inputs.shape == (told["rows"]["train"] + 21, 1, 8, 8)


def test_a_run_among_the_pictures_is_none_of_them(inside):
    data = as_pictures(inside)
    posterity("fit", data, "--out", "pictures/run", *QUICK)
    (inside / "pictures" / "run" / "plots").mkdir()
    Image.new("L", (9, 9)).save(inside / "pictures" / "run" / "plots" / "calibration.png")
    assert "most suspicious" in posterity("map", "pictures/run", "--top", 1)
    assert set(RunFolder.open("pictures/run").class_names) == set("0123456789")
    posterity("fit", data, "--out", "again", *QUICK)
    assert RunFolder.open("again").class_names == RunFolder.open("pictures/run").class_names
    for words in (("fit", data, *QUICK), ("adapt", "pictures/run", "--add", data)):
        with pytest.raises(InvalidInput, match="a folder without pictures of the data"):
            posterity(*words, "--out", "pictures/3")
    Image.new("L", (9, 9)).save(inside / "pictures" / "3" / "new.png")
    with pytest.raises(RefusedFile, match="a folder of pictures that has changed"):
        posterity("map", "pictures/run")


def test_files_that_are_called_like_those_of_a_run_hide_no_pictures(tmp_path):
    for name in ("a/x.png", "b/deeper/x.png"):
        (tmp_path / name).parent.mkdir(parents=True)
        Image.new("L", (4, 4)).save(tmp_path / name)
    for name, text in (("a/run.json", "[]"), ("b/training.json", '{"annotations": []}'), ("b/deeper/run.json", "{")):
        (tmp_path / name).write_text(text)
    assert len(picture_files(tmp_path)) == 2
    with pytest.raises(InvalidInput, match="without pictures of the data"):
        DataSource.of(tmp_path, tmp_path / "b")
    write_sealed(tmp_path / "b" / "training.json", {"config": {}})
    assert [path.name for path in (file.parent for file in picture_files(tmp_path))] == ["a"]


def test_other_pictures_may_lie_where_a_run_goes(inside):
    frame = pd.DataFrame({"x": np.arange(40.0), "kind": np.arange(40) // 20})
    frame.to_csv(inside / "rows.csv", index=False)
    (inside / "results").mkdir()
    Image.new("L", (4, 4)).save(inside / "results" / "plot.png")
    posterity("fit", "rows.csv", "--target", "kind", "--out", "results", *QUICK)
    assert RunFolder.open("results").class_names == ("0", "1")
    assert (inside / "results" / "plot.png").exists()


def test_vectors_stand_in_for_texts_at_every_step(inside):
    rng, labels = np.random.default_rng(0), np.arange(60) % 2
    texts = [f"some words about thing number {i} and no more" for i in range(60)]
    pd.DataFrame({"text": texts, "mood": np.array(["bad", "good"])[labels]}).to_csv("texts.csv", index=False)
    np.savez("vectors.npz", embeddings=rng.normal(size=(60, 4)) + 4 * labels[:, None])
    with_vectors = ("--embeddings", "vectors.npz")
    told = json.loads(
        posterity("fit", "texts.csv", "--target", "mood", *with_vectors, "--out", "run", *QUICK, "--json")
    )
    assert told["metrics"]["accuracy"] > 0.9
    posterity("predict", "run", "texts.csv", *with_vectors)
    pd.read_csv("texts.csv").assign(text=texts[::-1]).to_csv("more.csv", index=False)
    adapted = json.loads(posterity("adapt", "run", "--add", "more.csv", *with_vectors, "--out", "more", "--json"))
    assert adapted["adaptation"]["added"] == 60
    with pytest.raises(InvalidInput, match="--embeddings"):
        posterity("predict", "run", "texts.csv")
    with pytest.raises(InvalidInput, match="--embeddings"):
        posterity("adapt", "run", "--add", "more.csv", "--out", "other")


def test_the_report_says_how_to_do_it_again(inside):
    flowers(inside / "flowers.csv")
    asked = ("--target", "species", "--test", "colour=blue", "--ignore", "sepal_width", "--seed", 3)
    posterity("fit", "flowers.csv", *asked, "--out", "run", *QUICK)
    posterity(*shlex.split(contents(RunFolder.open("run")).reproduce)[1:], "--out", "again")
    first, again = RunFolder.open("run"), RunFolder.open("again")
    assert first.files["model.safetensors"].sha256 == again.files["model.safetensors"].sha256
    assert first.metrics == again.metrics


def test_a_refused_setting_leaves_no_training_behind(inside):
    line(inside / "line.csv")
    with pytest.raises(InvalidInput, match="epochs"):
        posterity("fit", "line.csv", "--target", "y", "--out", "run", "--lr", 0.1, "--hess-init", 1, "--epochs", 0)
    posterity("fit", "line.csv", "--target", "y", "--out", "run", *QUICK)
    with pytest.raises(RefusedFile, match="finished"):
        posterity("fit", "--resume", "--out", "run")


def test_a_resumed_training_is_asked_for_nothing_else(inside, monkeypatch):
    line(inside / "line.csv")
    asked = ("fit", "line.csv", "--target", "y", "--test", 0.3, "--out", "run", *QUICK, "--option", "beta1=0.8")
    monkeypatch.setattr(planning, "fit", None)  # killed before its first step
    with pytest.raises(TypeError):
        posterity(*asked)
    monkeypatch.undo()
    monkeypatch.chdir(inside)
    for other, said in (
        (("--seed", 5), "seed: expected 0 as in the training to resume, got 5"),
        (("--method", "sgd"), "method: expected ivon"),
        (("--test", 0.2), "test: expected 0.3 as in the training to resume, got 0.2"),
        (("--option", "beta1=0.7"), "beta1: expected 0.8"),
        (("--ignore", "x"), "ignore: expected it left out beside --resume"),
    ):
        with pytest.raises(InvalidInput, match=said):
            posterity("fit", "--resume", "--out", "run", *other)
    with pytest.raises(InvalidInput, match="target: expected y"):
        posterity("fit", "line.csv", "--target", "x", "--resume", "--out", "run")
    assert "trained: linear with ivon" in posterity(*asked, "--resume")


def test_a_training_that_moved_with_its_data_is_resumed(inside, monkeypatch):
    (inside / "here").mkdir()
    for name in ("line", "held", "other"):
        line(inside / "here" / f"{name}.csv", rows=30 + len(name))
    monkeypatch.setattr(planning, "fit", None)  # killed before its first step
    with pytest.raises(TypeError):
        posterity("fit", "here/line.csv", "--target", "y", "--test", "here/held.csv", "--out", "here/run", *QUICK)
    monkeypatch.undo()
    (inside / "here").rename(inside / "there")
    monkeypatch.chdir(inside / "there")
    asked = ("fit", "../there/line.csv", "--resume", "--out", "run")
    with pytest.raises(InvalidInput, match=r"test: expected .*held\.csv as in the training to resume, got other\.csv"):
        posterity(*asked, "--test", "other.csv")
    with pytest.raises(InvalidInput, match=r"data: expected .*line\.csv as in the training to resume, got other\.csv"):
        posterity("fit", "other.csv", "--resume", "--out", "run")
    assert "34 held-out rows" in posterity(*asked, "--test", "held.csv")


def test_overwriting_gives_nothing_up_before_it_has_something_new(inside):
    (inside / "run" / "training").mkdir(parents=True)
    write_sealed(inside / "run" / "training.json", {"a training": "under way"})
    with pytest.raises(InvalidInput, match="not there"):
        posterity("fit", "misspelt.csv", "--target", "y", "--out", "run", "--overwrite")
    assert read_sealed(inside / "run" / "training.json") == {"a training": "under way"}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("latin.csv", b"name,y\ncaf\xe9,1\n", "save it as UTF-8"),
        ("empty.csv", b"", "got an empty one"),
        ("noise.npz", b"\x80\x04 no archive", "never loaded"),
    ],
)
def test_unreadable_files_come_with_a_way_out(inside, name, content, said):
    (inside / name).write_bytes(content)
    with pytest.raises(RefusedFile, match=said):
        posterity("fit", name, "--target", "y")


def test_a_file_is_no_run(inside):
    (inside / "some.csv").write_text("a\n1\n")
    with pytest.raises(RefusedFile, match="got a file"):
        posterity("doctor", "some.csv")


def test_errors_of_a_factory_are_not_ours(inside, monkeypatch):
    line(inside / "line.csv")
    (inside / "broken_networks.py").write_text("def broken():\n    raise RuntimeError('no such layer')\n")
    monkeypatch.syspath_prepend(inside)
    with pytest.raises(InvalidInput, match="RuntimeError: no such layer"):
        posterity("fit", "line.csv", "--target", "y", "--model", "broken_networks:broken")


@pytest.mark.parametrize(("option", "value"), [("--batch-size", 0), ("--device", "abacus")])
def test_settings_that_cannot_be(inside, option, value):
    line(inside / "line.csv")
    with pytest.raises(InvalidInput, match=f"got '?{value}"):
        posterity("fit", "line.csv", "--target", "y", option, value)
