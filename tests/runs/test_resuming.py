"""A training that was stopped goes on, to the same bits."""

import os
import shutil

import pytest
import torch
from typer.testing import CliRunner

from posterity.cli import app
from posterity.errors import RefusedFile
from posterity.learning import Callback
from posterity.runs import RunFolder, fitting, planning
from posterity.runs.predicting import predict_run
from posterity.runs.readers import read_rows
from runs.problems import bits, trained


class Impatient(Callback):
    def __init__(self, step):
        self.at = step

    def step(self, moment):
        if moment.step == self.at:
            raise KeyboardInterrupt


@pytest.mark.parametrize("step", [1, 4, 7, 15])
def test_resume_is_exact(here, run, tmp_path, monkeypatch, step):
    real = planning.fit
    interrupted = lambda *a, callbacks, **k: real(*a, callbacks=[Impatient(step), *callbacks], **k)  # noqa: E731
    monkeypatch.setattr(planning, "fit", interrupted)
    stopped = trained(tmp_path / "run", here / "flowers.csv")
    monkeypatch.undo()
    assert stopped.status == "interrupted"
    assert predict_run(stopped, read_rows(here / "flowers.csv"))[1]["accuracy"] > 0  # usable as it is
    resumed = fitting.train(planning.reopen(tmp_path / "run"))
    assert resumed.status == "finished"
    for name, value in bits(run).items():
        assert torch.equal(bits(resumed)[name], value), name
    assert resumed.predictions.equals(run.predictions)
    assert resumed.memory_history.equals(run.memory_history)
    with pytest.raises(RefusedFile, match="unfinished training"):
        planning.reopen(tmp_path / "run")


class KeepEach(Callback):
    """A copy of the folder of a training, as it was before each step, by the number of steps done."""

    def __init__(self, folder):
        self.folder = folder

    def step(self, moment):
        shutil.copytree(self.folder, self.folder.with_name(f"run-{moment.step - 1}"))


def test_the_command_resumes_to_the_bit_before_any_of_fifty_steps(here, tmp_path, monkeypatch):
    """A power cut before each step in `make nightly`, before some of them otherwise."""
    shutil.copy(here / "flowers.csv", tmp_path)
    monkeypatch.chdir(tmp_path)
    real, keep = planning.fit, KeepEach(tmp_path / "run")
    monkeypatch.setattr(planning, "fit", lambda *a, callbacks, **k: real(*a, callbacks=[*callbacks, keep], **k))
    command = "fit flowers.csv --target species --out run --model linear --epochs 5 --batch-size 12 --lr 0.5 --test 0.2"
    done = CliRunner().invoke(app, command.split(), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    monkeypatch.setattr(planning, "fit", real)
    whole = RunFolder.open(tmp_path / "run")
    assert whole.content["steps"] == 50
    for step in range(50) if "POSTERITY_NIGHTLY" in os.environ else (0, 19, 20, 49):
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
    real = planning.fit
    interrupted = lambda *a, callbacks, **k: real(*a, callbacks=[Impatient(7), *callbacks], **k)  # noqa: E731
    monkeypatch.setattr(planning, "fit", interrupted)
    assert trained(tmp_path / "run", here / "flowers.csv", **settings).status == "interrupted"
    monkeypatch.undo()
    resumed = fitting.train(planning.reopen(tmp_path / "run"))
    for member, wanted in zip(resumed.posterior.structure.members, (first, second)):
        assert all(torch.equal(member[name], value) for name, value in wanted.items())


def test_a_training_under_way_is_no_run_yet(here, tmp_path, monkeypatch):
    def killed(*_, **__):
        raise MemoryError

    monkeypatch.setattr(planning, "fit", killed)
    with pytest.raises(MemoryError):
        trained(tmp_path / "run", here / "flowers.csv")
    monkeypatch.undo()
    with pytest.raises(RefusedFile, match="fit --resume"):
        RunFolder.open(tmp_path / "run")
    assert fitting.train(planning.reopen(tmp_path / "run")).status == "finished"
