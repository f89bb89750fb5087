"""Loggers, the progress bar, and the four moments they are called at."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import sys

import pytest

from learning.problems import blobs, mlp
from posterity.errors import MissingExtra
from posterity.learning import JSONLines, TensorBoard, WandB, fit

# Most runs here are far too short for IVON's Hessian, and it says so.
pytestmark = pytest.mark.filterwarnings("ignore:IVON. only .* of the Hessian has been learnt")


def test_json_lines_are_the_history(tmp_path):
    run = fit(mlp(), blobs(), method="adamw", epochs=3, callbacks=[JSONLines(tmp_path / "history.jsonl")])
    lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert lines == run.history


def test_weights_and_biases_receive_the_history():
    rows = []

    class FakeRun:
        def log(self, row, step):
            rows.append((step, row))

    run = fit(mlp(), blobs(), method="adamw", epochs=2, batch_size=50, callbacks=[WandB(FakeRun())])
    assert rows == [(2, run.history[0]), (4, run.history[1])]


def test_tensorboard_receives_the_history(tmp_path, monkeypatch):
    scalars = []

    class Writer:
        def __init__(self, folder):
            assert folder == str(tmp_path)

        def add_scalar(self, name, value, step):
            scalars.append((name, value, step))

        def flush(self):
            scalars.append("flushed")

    module = type(sys)("torch.utils.tensorboard")
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    run = fit(mlp(), blobs(), method="adamw", epochs=1, callbacks=[TensorBoard(tmp_path)])
    assert scalars == [*((name, value, 2) for name, value in run.history[0].items()), "flushed"]


@pytest.mark.skipif(importlib.util.find_spec("wandb") is not None, reason="wandb is installed")
def test_a_missing_package_is_named():
    with pytest.raises(MissingExtra, match="expected the package wandb; pip install wandb"):
        WandB()


def test_the_bar_shows_loss_accuracy_sigma_and_time_left(monkeypatch):
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "160")
    fit(mlp(), blobs(), epochs=2, validation=blobs(seed=1))
    shown = screen.getvalue()
    for word in ("epoch 2/2", "loss", "accuracy", "validation", "σ", "0:00:0"):
        assert word in shown, word


def test_no_bar_without_a_terminal(capsys):
    fit(mlp(), blobs(), method="adamw", epochs=1)
    assert capsys.readouterr().err == ""


def test_steps_and_time_left_are_readable_on_eighty_columns(monkeypatch):
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "80")
    fit(mlp(), blobs(), epochs=1200, batch_size=100, validation=blobs(seed=1), method="adamw")
    last = [line for line in re.split(r"[\r\n]", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())) if line][-1]
    assert len(last.rstrip()) <= 80
    assert "epoch 1200/1200" in last
    assert "1200/1200 0:00:00" in last
    assert re.search(r"loss \S+  [\d,.]+", last)  # the rate follows


def test_lines_without_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr("posterity.progress.FIRST", 0.0)
    monkeypatch.setattr("posterity.progress.PAUSE", 0.0)
    fit(mlp(), blobs(), method="adamw", epochs=1, batch_size=50)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("training: 2 of 2, about 0 s left, epoch 1/1, loss ")
    assert re.search(r"[\d,.]+ examples/s$", lines[1])
