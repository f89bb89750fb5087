"""Stopped anywhere and resumed, a run ends in the same bits."""

from __future__ import annotations

import json
import random
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from learning.problems import BINARY, blobs, line, mlp
from posterity.errors import RefusedFile
from posterity.learning import Callback, fit
from posterity.learning.learners import METHODS

# Most runs here are far too short for IVON's Hessian, and it says so.
pytestmark = pytest.mark.filterwarnings("ignore:.* only .* of the Hessian has been learnt")

STEPS = 50  # ten epochs of five steps


class StopAt(Callback):
    def __init__(self, step):
        self.at = step

    def step(self, moment):
        if moment.step == self.at:
            raise KeyboardInterrupt


def noisy(x):
    """An augmentation that draws from all three generators."""
    return x + 0.1 * torch.randn_like(x) + 0.1 * float(np.random.rand()) + 0.1 * random.random()


def network(seed=0, method="ivon"):
    """Dropout and, where the method can, batch norm; binary weights without biases."""
    bias = method not in BINARY
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        norm = nn.Identity() if method in ("mixture_ivon", "vogn", "ogn") else nn.BatchNorm1d(6, affine=bias)
        return nn.Sequential(nn.Linear(2, 6, bias), norm, nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 3, bias))


def train(model, data, **settings):
    return fit(model, data, **{"batch_size": 16, "accumulate": 2, "epochs": 10, "augment": noisy, **settings})


def assert_same(run, whole):
    assert run.steps == whole.steps
    for (name, ours), theirs in zip(run.model.state_dict().items(), whole.model.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), name
    ours, theirs = run.posterior, whole.posterior
    assert ours.names == theirs.names
    for k in range(2):
        a, b = ours.sample(k), theirs.sample(k)
        assert all(torch.equal(a[name], b[name]) for name in b)
    assert ours.likelihood == theirs.likelihood
    for row, other in zip(run.history, whole.history, strict=True):
        assert row | {"seconds": 0} == other | {"seconds": 0}


class KeepEach(Callback):
    """A copy of every checkpoint, each made when the next step is done."""

    def __init__(self, folder, copies):
        self.folder, self.copies = folder, copies

    def step(self, moment):
        if moment.step > 1:
            shutil.copytree(self.folder, self.copies / str(moment.step - 1))


def state(folder):
    """All that a checkpoint holds: its tensors, and the rest without times and without hashes of the files."""
    (tensors,) = folder.glob("*.safetensors")
    return load_file(tensors), timeless(json.loads((folder / "checkpoint.json").read_text())["content"])


def timeless(found):
    if isinstance(found, dict):
        return {name: timeless(value) for name, value in found.items() if name not in ("seconds", "checkpoint_every")}
    return [timeless(value) for value in found] if isinstance(found, list) else found


def test_every_step_of_fifty(tmp_path):
    """IVON with dropout, batch norm, augmentation, accumulation, validation, resumed after each of its steps.

    From each it takes one step to the state that was there before; what follows from a state is the same, which the
    last of an epoch, the first of one and the last of all show to the end.
    """
    data = blobs(150)
    settings = {"method": "ivon", "validation": blobs(30, seed=1), "patience": 9, "checkpoint_every": 1}
    folder, copies, again = tmp_path / "run", tmp_path / "copies", tmp_path / "again"
    whole = train(network(), data, checkpoint=folder, callbacks=[KeepEach(folder, copies)], **settings)
    assert whole.steps == STEPS
    for step in range(1, STEPS - 1):
        there = shutil.copytree(copies / str(step), tmp_path / f"from-{step}")
        calls = [KeepEach(there, again / str(step)), StopAt(step + 2)]
        assert train(network(seed=9), data, checkpoint=there, resume=True, callbacks=calls, **settings).interrupted
        (tensors, rest), (wanted, wanted_rest) = state(again / str(step) / str(step + 1)), state(copies / str(step + 1))
        assert tensors.keys() == wanted.keys()
        assert all(torch.equal(tensors[name], t) for name, t in wanted.items()), step
        assert rest == wanted_rest, step
    for step in (5, 6, 7, STEPS - 1):
        there = {"checkpoint": copies / str(step)}
        assert_same(train(network(seed=9), data, resume=True, **there, **settings), whole)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method(method, tmp_path):
    settings = {"method": method, "accumulate": 2}
    if METHODS[method].refused:
        settings |= {"accumulate": 1, "batch_size": 32}
    whole = train(network(0, method), blobs(150), **settings)
    settings |= {"checkpoint": tmp_path, "checkpoint_every": 50}
    stopped = train(network(0, method), blobs(150), callbacks=[StopAt(41)], **settings)
    assert stopped.interrupted
    assert_same(train(network(9, method), blobs(150), resume=True, **settings), whole)


def test_a_regression_with_its_noise(tmp_path):
    settings = {"batch_size": 20, "epochs": 5}
    whole = fit(mlp(3, 8, 1), line(100), **settings)
    fit(mlp(3, 8, 1), line(100), callbacks=[StopAt(12)], checkpoint=tmp_path, **settings)
    resumed = fit(mlp(3, 8, 1, seed=9), line(100), checkpoint=tmp_path, resume=True, **settings)
    assert_same(resumed, whole)
    assert resumed.posterior.likelihood.precision != 1


def shuffled():
    return {"shuffle": True}


def shuffled_by_its_own_generator():
    return {"shuffle": True, "generator": torch.Generator().manual_seed(3)}


def sampled_by_its_own_generator():
    return {"sampler": WeightedRandomSampler([1.0] * 150, 150, generator=torch.Generator().manual_seed(3))}


@pytest.mark.parametrize("stop", [8, 10], ids=["within an epoch", "between epochs"])
@pytest.mark.parametrize("order", [shuffled, shuffled_by_its_own_generator, sampled_by_its_own_generator])
def test_a_shuffling_loader(tmp_path, order, stop):
    def loader():
        return DataLoader(TensorDataset(*blobs(150)), batch_size=30, **order())

    whole = fit(mlp(), loader(), epochs=3)
    fit(mlp(), loader(), epochs=3, callbacks=[StopAt(stop)], checkpoint=tmp_path)
    assert_same(fit(mlp(), loader(), epochs=3, checkpoint=tmp_path, resume=True), whole)


def test_mixed_precision_keeps_its_scale(tmp_path):
    settings = {"method": "sgd", "amp": "fp16", "epochs": 4, "batch_size": 25}
    whole = fit(mlp(), blobs(100), **settings)
    fit(mlp(), blobs(100), callbacks=[StopAt(9)], checkpoint=tmp_path, **settings)
    assert_same(fit(mlp(), blobs(100), checkpoint=tmp_path, resume=True, **settings), whole)


def test_early_stopping_remembers_the_best(tmp_path):
    settings = {
        "method": "adamw", "lr": 0.05, "schedule": lambda t: 1 + 100 * t, "epochs": 30, "batch_size": 25,
        "validation": blobs(60, seed=1), "patience": 4,
    }  # fmt: skip
    whole = fit(mlp(), blobs(50), **settings)
    assert whole.steps < 60
    fit(mlp(), blobs(50), callbacks=[StopAt(whole.steps - 3)], checkpoint=tmp_path, **settings)
    assert_same(fit(mlp(), blobs(50), checkpoint=tmp_path, resume=True, **settings), whole)
    finished = fit(mlp(), blobs(50), checkpoint=tmp_path, resume=True, **settings)
    assert_same(finished, whole)


def test_ensembles_go_on_with_the_member_that_was_stopped(tmp_path):
    settings = {"method": "ensemble", "members": 3, "epochs": 2, "batch_size": 25}
    whole = fit(mlp, blobs(50), **settings)

    class StopInSecond(StopAt):
        begun = 0

        def start(self, moment):
            self.begun += 1

        def step(self, moment):
            if self.begun == 2:
                super().step(moment)

    stopped = fit(mlp, blobs(50), checkpoint=tmp_path, callbacks=[StopInSecond(3)], **settings)
    assert stopped.interrupted
    assert len(stopped.posterior.structure.members) == 1
    assert_same(fit(mlp, blobs(50), checkpoint=tmp_path, resume=True, **settings), whole)


def test_numbers_of_numpy_are_numbers(tmp_path):
    asked = {"epochs": 2, "seed": 3, "lr": 0.25, "budget": 0.5}
    whole = train(network(), blobs(60), **asked)
    as_numpy = {"epochs": np.int64(2), "seed": np.int64(3), "lr": np.float32(0.25), "budget": np.float32(0.5)}
    train(network(), blobs(60), **as_numpy, checkpoint=tmp_path, callbacks=[StopAt(2)])
    assert_same(train(network(seed=1), blobs(60), **asked, checkpoint=tmp_path, resume=True), whole)


def test_a_damaged_checkpoint_is_refused(tmp_path):
    fit(mlp(), blobs(50), epochs=1, checkpoint=tmp_path)
    file = next(tmp_path.glob("*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(RefusedFile, match="damaged"):
        fit(mlp(), blobs(50), epochs=1, checkpoint=tmp_path, resume=True)
