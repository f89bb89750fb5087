"""Where a training works: what others keep there is neither used nor removed, and what it looks at cannot stop it."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from posterity.errors import InvalidInput, RefusedFile
from posterity.runs import RunFolder, fitting, planning
from posterity.runs.adapting import adapt_run
from posterity.runs.config import Config
from posterity.runs.data import Data, DataSource
from posterity.runs.decisions import RowDecisions
from runs.problems import flowers, plan, trained


@pytest.fixture
def data(tmp_path):
    flowers(tmp_path / "flowers.csv", rows=60)
    return tmp_path / "flowers.csv"


def killed(*_, **__):
    raise MemoryError


def test_a_folder_of_the_user_called_training_is_safe(tmp_path, data):
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "picture.png").write_text("mine")
    fitting.discard(tmp_path)
    with pytest.raises(InvalidInput, match="another --out"):
        fitting.refuse_occupied(tmp_path, overwrite=True)
    with pytest.raises(InvalidInput, match="another --out"):
        fitting.train(plan(tmp_path, data))
    assert (tmp_path / "training" / "picture.png").read_text() == "mine"


def test_a_file_of_the_user_called_training_is_safe(tmp_path, data):
    (tmp_path / "training.json").write_text('{"lr": 0.1}')
    with pytest.raises(RefusedFile, match="damaged"):
        fitting.refuse_occupied(tmp_path, overwrite=True)
    with pytest.raises(RefusedFile, match="damaged"):
        fitting.train(plan(tmp_path, data))
    assert (tmp_path / "training.json").read_text() == '{"lr": 0.1}'


def test_a_training_that_was_overwritten_does_not_come_back(tmp_path, data, monkeypatch):
    run = trained(tmp_path / "run", data)
    monkeypatch.setattr(planning, "fit", killed)
    with pytest.raises(MemoryError):
        trained(tmp_path / "other", data)
    gone = run.data("train").ids[0].item()
    adapt_run(run, tmp_path / "other", decisions=RowDecisions((), (gone,), {}), overwrite=True)
    with pytest.raises(RefusedFile, match="a run that is finished"):
        planning.reopen(tmp_path / "other")
    assert RunFolder.open(tmp_path / "other").posterior.n == 47


def test_a_training_that_goes_on_is_not_overwritten(tmp_path, data, monkeypatch):
    ready = plan(tmp_path / "run", data)

    def interfere(*_, **__):
        for overwrite in (False, True):
            with pytest.raises(InvalidInput, match="a process that is writing"):
                fitting.refuse_occupied(tmp_path / "run", overwrite)
        raise MemoryError

    monkeypatch.setattr(planning, "fit", interfere)
    with pytest.raises(MemoryError):
        fitting.train(ready)
    fitting.refuse_occupied(tmp_path / "run", overwrite=True)


def test_a_second_training_that_was_ready_first_takes_nothing_from_the_first(tmp_path, data, monkeypatch):
    first, second = plan(tmp_path / "run", data), plan(tmp_path / "run", data)

    def interfere(*_, **__):
        (tmp_path / "run" / "training").mkdir(exist_ok=True)
        (tmp_path / "run" / "training" / "mine").write_text("mine")
        with pytest.raises(InvalidInput, match="a process that is writing"):
            fitting.train(second, anew=True)
        with pytest.raises(InvalidInput, match="a process that is writing"):
            fitting.give_up(tmp_path / "run")
        assert (tmp_path / "run" / "training" / "mine").read_text() == "mine"
        raise MemoryError

    monkeypatch.setattr(planning, "fit", interfere)
    with pytest.raises(MemoryError):
        fitting.train(first, anew=True)
    assert (tmp_path / "run" / "training.json").exists()
    monkeypatch.undo()
    assert fitting.train(second, anew=True).status == "finished"
    assert not (tmp_path / "run" / "training").exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_three_commands_over_one_run_at_once(tmp_path, data):
    script = Path(__file__).with_name("overwriting.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), "4"], capture_output=True, text=True, check=False
    )
    assert "4 rounds" in done.stdout, done.stderr


def test_two_handles_add_to_a_run_and_a_third_of_another_run_does_not(tmp_path, data):
    one = trained(tmp_path / "run", data)
    two, three = RunFolder.open(tmp_path / "run"), RunFolder.open(tmp_path / "run")
    one.updated({"noted": 1}, files={"one.txt": b"1"})
    both = two.updated(files={"two.txt": b"2"})
    assert both.path("one.txt").read_bytes() + both.path("two.txt").read_bytes() == b"12"
    assert both.content["noted"] == 1
    other = tmp_path / "flowers-2.csv"
    flowers(other, rows=40)
    trained(tmp_path / "run", other)
    with pytest.raises(RefusedFile, match="expected the run that was opened"):
        three.updated(files={"three.txt": b"3"})


def test_a_map_that_cannot_be_drawn_does_not_stop_training(tmp_path):
    x = np.linspace(-2, 2, 60)
    pd.DataFrame({"x": x, "n": np.exp(x).round().astype(int)}).to_csv(tmp_path / "n.csv", index=False)
    data = Data(DataSource.of(tmp_path / "n.csv", tmp_path), "n")
    far = {"hess_init": 10.0, "prior": 10.0}  # the first step ends at rates of exp(100)
    config = Config(model="mlp", epochs=2, lr=3.0, options=far)
    found = fitting.train(planning.prepare(tmp_path / "run", config, data, task="count"))
    assert found.status == "finished"
    assert set(found.memory_history["epoch"]) < {1, 2}
