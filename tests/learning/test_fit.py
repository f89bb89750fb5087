"""The training loop against plain torch loops, and what it promises around them."""

from __future__ import annotations

import copy
import inspect
import math
import os
import signal
from dataclasses import fields

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from learning.problems import BINARY, blobs, digits, line, mlp
from posterity.batches import batches
from posterity.errors import InvalidInput, PosterityError
from posterity.learning import Callback, fit
from posterity.learning.learners import METHODS
from posterity.learning.settings import FitSettings
from posterity.likelihoods import GaussianLikelihood
from posterity.metrics import accuracy, ece, nll
from posterity.prediction import predict
from posterity.trees import to_vector, trainable

# Most runs here are far too short for IVON's Hessian, and it says so.
pytestmark = pytest.mark.filterwarnings("ignore:.* only .* of the Hessian has been learnt")


def weights(model):
    return to_vector(trainable(model)).detach().clone()


def plain_sgd(model, data, loss, *, epochs, batch_size, lr, momentum=0.9, weight_decay=0.0, clip=None):
    """The loop everybody writes, over the batches that `fit` sees."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay)
    stream = batches(data, batch_size=batch_size, shuffle=True, seed=0)
    for epoch in range(epochs):
        for batch in stream.epoch(epoch):
            optimizer.zero_grad()
            loss(model(batch.inputs), batch.targets).backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
    return model


@pytest.mark.parametrize("option", [
    {"class_weights": [1.0, 2.0, 0.5]},
    {"label_smoothing": 0.2},
    {"ignore_index": 2},
    {"class_weights": [1.0, 2.0, 0.5], "label_smoothing": 0.2, "ignore_index": 1},
], ids=str)  # fmt: skip
def test_loss_options_train_as_in_torch(option):
    data = blobs()
    ours, theirs = mlp(), mlp()
    fit(ours, data, method="sgd", schedule="constant", lr=0.1, epochs=3, batch_size=16, prior=2.0, **option)
    as_torch = {"weight" if k == "class_weights" else k: v for k, v in option.items()}
    if "weight" in as_torch:
        as_torch["weight"] = torch.tensor(as_torch["weight"])
    plain_sgd(
        theirs, data, lambda f, y: F.cross_entropy(f, y, **as_torch),
        epochs=3, batch_size=16, lr=0.1, weight_decay=2.0 / 100,
    )  # fmt: skip
    torch.testing.assert_close(weights(ours), weights(theirs))


def test_penalty_clip_and_fixed_noise_train_as_in_torch():
    data = line(64)
    ours, theirs = mlp(3, 8, 1), mlp(3, 8, 1)

    def penalty(model):
        return 0.1 * weights_squared(model)

    def weights_squared(model):
        return sum(p.square().sum() for p in model.parameters())

    fit(
        ours, data, method="sgd", likelihood=GaussianLikelihood(3.0), schedule="constant", lr=0.05, epochs=2,
        batch_size=16, prior=0.0, penalty=penalty, clip=0.5,
    )  # fmt: skip
    plain_sgd(
        theirs, data, lambda f, y: 1.5 * F.mse_loss(f, y) + penalty(theirs),
        epochs=2, batch_size=16, lr=0.05, clip=0.5,
    )  # fmt: skip
    torch.testing.assert_close(weights(ours), weights(theirs))


@pytest.mark.parametrize(("method", "n"), [("sgd", 96), ("adamw", 96), ("adamw", 90)])
def test_accumulation_equals_the_big_batch(method, n):
    data = blobs(n)
    data[1][::5] = -1  # micro-batches of unequal mass
    big, small = mlp(), mlp()
    settings = {"method": method, "epochs": 3, "ignore_index": -1, "class_weights": [1.0, 2.0, 3.0]}
    fit(big, data, batch_size=32, **settings)
    fit(small, data, batch_size=8, accumulate=4, **settings)
    torch.testing.assert_close(weights(big), weights(small), rtol=1e-5, atol=1e-6)


def test_a_bound_that_no_gradient_reaches_changes_nothing():
    free, bounded = mlp(), mlp()
    fit(free, blobs(), method="adamw", epochs=2, batch_size=20)
    fit(bounded, blobs(), method="adamw", epochs=2, batch_size=20, clip=1e6)
    assert torch.equal(weights(free), weights(bounded))


def test_the_schedule_reaches_the_optimizer():
    seen = []

    class Watch(Callback):
        def step(self, moment):
            seen.append(moment.optimizer.param_groups[0]["lr"])

    fit(mlp(), blobs(), method="sgd", epochs=2, batch_size=25, lr=0.5, schedule=lambda t: 1 - t, callbacks=[Watch()])
    assert seen == pytest.approx([0.5 * (1 - (k + 0.5) / 8) for k in range(8)])


def test_early_stopping_keeps_the_best():
    """With a wildly growing learning rate the first epochs are the best; training stops and goes back to them."""
    data, held_out = blobs(100), blobs(200, seed=1)
    model = mlp()
    states = []

    class Keep(Callback):
        def epoch(self, moment):
            states.append((moment.metrics()["validation_loss"], weights(moment.model)))

    run = fit(
        model, data, method="adamw", lr=0.01, schedule=lambda t: math.exp(20 * (t - 0.1)), epochs=40, batch_size=20,
        validation=held_out, patience=3, callbacks=[Keep()],
    )  # fmt: skip
    losses = [loss for loss, _ in states]
    best = losses.index(min(losses))
    assert len(losses) == best + 1 + 3 < 40
    assert torch.equal(weights(run.model), states[best][1])
    theirs = F.cross_entropy(model(held_out[0]), held_out[1]).item()
    assert theirs == pytest.approx(min(losses), rel=1e-6)


def test_early_stopping_solves_the_width_at_the_kept_weights():
    data, held_out = blobs(200), blobs(100, seed=1)
    options = {"method": "variational", "epochs": 2000, "lr": 0.03, "watch": False, "progress": False}
    run = fit(mlp(hidden=32), data, validation=held_out, patience=3, **options)
    rows = [row for row in run.history if row["validation_loss"] == min(r["validation_loss"] for r in run.history)]
    assert len(run.history) < 2000
    assert {"temperature", "price", "effective_parameters"} <= set(rows[0])
    assert run.posterior.temperature > 100 * rows[0]["temperature"]  # the budget had not opened yet


def test_validation_that_is_only_looked_at_changes_nothing():
    options = {"method": "variational", "epochs": 15, "progress": False}
    alone = fit(mlp(), blobs(), **options).posterior
    watched = fit(mlp(), blobs(), validation=blobs(seed=1), watch=False, **options).posterior
    assert watched.ess == alone.ess
    assert all(torch.equal(t, watched.mean[name]) for name, t in alone.mean.items())


def test_an_interrupted_run_keeps_the_best_too():
    class StopLate(Callback):
        def epoch(self, moment):
            if moment.epoch == 8:
                raise KeyboardInterrupt

    model, held_out = mlp(), blobs(200, seed=1)
    run = fit(
        model, blobs(), method="adamw", lr=0.01, schedule=lambda t: math.exp(20 * (t - 0.1)), epochs=20, batch_size=20,
        validation=held_out, patience=20, callbacks=[StopLate()],
    )  # fmt: skip
    best = min(row["validation_loss"] for row in run.history)
    assert best < run.history[-1]["validation_loss"]
    assert F.cross_entropy(model(held_out[0]), held_out[1]).item() == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_an_interrupted_run_is_usable(method):
    class Impatient(Callback):
        def step(self, moment):
            if moment.step == 7:
                raise KeyboardInterrupt

    options = {"p": 0.2} if method == "dropout" else {}
    model = mlp(bias=method not in BINARY)
    before = signal.getsignal(signal.SIGINT)
    run = fit(model, blobs(), method=method, epochs=10, batch_size=20, callbacks=[Impatient()], **options)
    assert run.interrupted
    assert run.steps == 7
    assert len(run.history) == 1
    assert predict(run.model, run.posterior, blobs()[0], samples=2).probs.shape == (100, 3)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_real_ctrl_c_stops_after_the_step():
    class CtrlC(Callback):
        def step(self, moment):
            if moment.step == 3:
                os.kill(os.getpid(), signal.SIGINT)

    run = fit(mlp(), blobs(), epochs=10, callbacks=[CtrlC()])
    assert run.interrupted
    assert run.steps == 3


def test_history_and_moments():
    moments = []

    class Watch(Callback):
        def start(self, moment):
            moments.append(("start", moment.step))

        def epoch(self, moment):
            moments.append(("epoch", moment.epoch))
            assert moment.posterior().n == 100
            assert "step" in moment.optimizer.state[next(moment.model.parameters())]

        def end(self, moment):
            moments.append(("end", moment.step))

    names = ("a", "b", "c")
    settings = {"epochs": 2, "batch_size": 50, "validation": blobs(20, seed=1), "class_names": names}
    run = fit(mlp(), blobs(), callbacks=[Watch()], **settings)
    assert run.posterior.class_names == names
    assert moments == [("start", 0), ("epoch", 1), ("epoch", 2), ("end", 4)]
    columns = {"epoch", "loss", "accuracy", "lr", "sigma", "validation_loss", "validation_accuracy", "seconds"}
    assert set(run.history[0]) == columns | {"temperature", "price", "effective_parameters"}
    assert [row["epoch"] for row in run.history] == [1, 2]


def test_augmentation_does_not_change_n():
    seen = []

    def augment(x):
        seen.append(len(x))
        return x + 0.1 * torch.randn_like(x)

    run = fit(mlp(), blobs(), epochs=2, batch_size=50, augment=augment)
    assert sum(seen) == 200
    assert run.posterior.n == 100
    assert run.posterior.ess >= 100
    assert fit(mlp(), blobs(), epochs=1, n=70).posterior.n == 70


class Records(Dataset):
    """Examples as mappings, the way tokenised text comes."""

    def __len__(self):
        return 40

    def __getitem__(self, i):
        x, y = blobs(40)
        return {"a": x[i, :1], "b": x[i, 1:], "labels": y[i]}


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = mlp()

    def forward(self, a, b):
        return self.inner(torch.cat((a, b), -1))


def test_mappings_loaders_and_datasets_are_the_same_data():
    x, y = blobs(40)
    given = [
        Records(),
        ({"a": x[:, :1], "b": x[:, 1:]}, y),
        DataLoader(Records(), batch_size=40),
    ]
    found = []
    for data in given:
        model = TwoInputs()
        fit(model, data, method="sgd", epochs=3, batch_size=40)
        found.append(weights(model))
    plain = mlp()
    fit(plain, DataLoader(TensorDataset(x, y), batch_size=40), method="sgd", epochs=3)
    for one in found:
        torch.testing.assert_close(one, weights(plain))


def test_maps_of_targets():
    """Logits (batch, classes, height, width): each image is one example, each pixel a target."""
    x = torch.randn(30, 2, 4, 4)
    y = (x.sum(1) > 0).long()
    run = fit(nn.Conv2d(2, 2, 1), (x, y), method="adamw", lr=0.1, epochs=30, batch_size=10)
    assert run.history[-1]["accuracy"] > 0.95
    assert run.posterior.n == 30


def test_the_callers_generator_is_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    fit(nn.Sequential(nn.Dropout(0.5), mlp()), blobs(), method="adamw", epochs=1)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("amp", ["bf16", "fp16"])
@pytest.mark.parametrize("method", ["ivon", "adamw"])
def test_mixed_precision(amp, method):
    run = fit(mlp(), blobs(200), method=method, amp=amp, epochs=20, batch_size=20, lr=0.05, clip=1.0, accumulate=2)
    plain = fit(mlp(), blobs(200), method=method, epochs=20, batch_size=20, lr=0.05, clip=1.0, accumulate=2)
    assert run.history[-1]["loss"] == pytest.approx(plain.history[-1]["loss"], rel=0.05)
    assert all(p.dtype == torch.float32 for p in run.model.parameters())


@pytest.mark.parametrize("network", ["mlp", "cnn"])
def test_defaults_learn_digits_with_calibration(network):
    train, test = digits()
    torch.manual_seed(0)
    if network == "mlp":
        model = mlp(64, 100, 10)
    else:
        model = nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(256, 10),
        )  # fmt: skip
    run = fit(model, train)
    probs = predict(model, run.posterior, test[0], samples=32).probs
    assert accuracy(probs, test[1]) > 0.97
    assert nll(probs, test[1]) < 0.12
    assert ece(probs, test[1]) < 0.03


def test_fine_tuning_goes_on_from_the_given_weights():
    data = blobs()
    model = mlp()
    fit(model, data, method="adamw", epochs=20)
    start = copy.deepcopy(model)
    fit(model, data, method="adamw", epochs=1, lr=1e-6)
    assert (weights(model) - weights(start)).abs().max() < 1e-4


def test_divergence_is_said():
    with pytest.raises(PosterityError, match="training diverged"):
        fit(mlp(3, 8, 1), line(), method="sgd", likelihood=GaussianLikelihood(1.0), lr=1e4, epochs=3, batch_size=10)
    far = TensorDataset(torch.zeros(500, 3), torch.full((500, 1), 1e18))  # 100 squares have a sum in float32, 400 none
    with pytest.raises(PosterityError, match="training diverged: the squared error is infinite"):
        fit(mlp(3, 8, 1), DataLoader(far, batch_sampler=[range(100), range(100, 500)]), method="adamw", epochs=1)
    factors = iter((1.0, torch.nan))  # of two steps the second spoils the weights, but no loss
    penalty = lambda model: next(factors) * next(model.parameters()).sum()  # noqa: E731
    with pytest.raises(PosterityError, match="training diverged: weights are NaN"):
        fit(mlp(), blobs(20), method="adamw", epochs=1, batch_size=10, penalty=penalty)


class Looks(Callback):
    def step(self, moment):
        moment.metrics()


def test_targets_that_do_not_count():
    x, y = blobs(20)
    some = torch.where(torch.arange(20) < 10, -1, y)
    settings = {"method": "adamw", "epochs": 1, "ignore_index": -1, "callbacks": [Looks()]}
    run = fit(mlp(), DataLoader(TensorDataset(x, some), 10), **settings)  # nothing to be seen after the first step
    assert run.history[0]["accuracy"] <= 1
    with pytest.raises(InvalidInput, match="targets: expected some that count"):
        fit(mlp(), (x, torch.full_like(y, -1)), **settings)
    with pytest.raises(InvalidInput, match="targets to validate with: expected some that count"):
        fit(mlp(), (x, y), validation=(x, torch.full_like(y, -1)), patience=1, **settings)


def test_empty_and_unfitting_data():
    with pytest.raises(InvalidInput, match="at least one"):
        fit(mlp(), (torch.zeros(0, 2), torch.zeros(0).long()))
    loader = DataLoader(TensorDataset(*blobs(5)), batch_size=10, drop_last=True)
    with pytest.raises(InvalidInput, match="data: expected at least one batch, got 'an empty loader'"):
        fit(mlp(), loader)


def test_the_arguments_of_fit_are_the_settings():
    """Names and defaults are those of the object that they go into, so that none is forgotten on the way."""
    arguments = {name: p.default for name, p in inspect.signature(fit).parameters.items()}
    defaults = {f.name: f.default for f in fields(FitSettings) if f.name != "options"}
    assert {
        name: arguments[name] for name in arguments if name not in ("model", "data", "tokenizer", "options")
    } == defaults


def test_a_run_prints_in_a_line():
    run = fit(mlp(), blobs(), epochs=2, batch_size=16)
    assert str(run).startswith(f"Run(variational, {run.steps} steps, Posterior(")
    assert "'epoch': 2" in str(run)
    assert "Linear" not in str(run)
    assert "\n" not in str(run)
