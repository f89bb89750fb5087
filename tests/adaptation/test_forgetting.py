"""Forgetting held to weighted retraining, and streams to a world that moves or stands still."""

from __future__ import annotations

import copy

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import minimize
from sklearn.datasets import load_digits
from torch import nn

import posterity as po
from adaptation.problems import logistic, newton_logistic
from networks import perceptron
from posterity.adaptation import adapt
from posterity.adaptation.solve import forgetting
from posterity.likelihoods import likelihood


@pytest.fixture(scope="module")
def regression():
    x, y = logistic(80)
    w, _ = newton_logistic(x, y, 1.0)
    model = nn.Linear(4, 1, bias=False).double()
    model.weight.data = torch.tensor(w)[None]
    return model, po.laplace(model, (x, y), likelihood="bernoulli", structure="full", prior_precision=1.0), (x, y)


def weighted_optimum(rows, labels, weights):
    def objective(w):
        f = rows @ w
        return (weights * (np.logaddexp(0, f) - labels * f)).sum() + 0.5 * w @ w

    return minimize(objective, np.zeros(4), method="BFGS", options={"gtol": 1e-9}).x


@pytest.mark.parametrize("forget", [0.0, 0.3, 1.0])
def test_forgetting_is_retraining_with_weights(regression, forget):
    model, posterior, (x, y) = regression
    new = logistic(40, seed=3, shift=0.3)
    result = adapt(model, posterior, data=(x, y), add=new, forget=forget)
    rows, labels = np.concatenate((x, new[0])), np.concatenate((y, new[1]))[:, 0]
    weights = np.r_[np.full(80, 1 - forget), np.ones(40)]
    found = weighted_optimum(rows, labels, weights)
    assert result.model.weight.detach().numpy()[0] == pytest.approx(found, abs=1e-6)
    p = 1 / (1 + np.exp(-rows @ found))
    hessian = rows.T @ (rows * (weights * p * (1 - p))[:, None]) + np.eye(4)
    assert result.posterior.structure.precision.numpy() == pytest.approx(hessian, abs=1e-5)
    assert result.posterior.memory.weights.sum().item() == pytest.approx(weights.sum())
    assert (result.report.drift is None) == (forget == 0)


@pytest.mark.parametrize("way", [None, "ewc", "combined"])
@pytest.mark.parametrize("training", ["variational", "ivon"])
@pytest.mark.parametrize("kind", ["linear", "network"])
def test_all_forgotten_two_pasts_that_contradict_each_other_end_alike(kind, training, way):
    """Of the old data there is nothing left but the width that a prior took from them."""
    new = torch.randn(60, 3, generator=torch.Generator().manual_seed(3))
    added, found = (new, (new[:, 0] > 0).long()), []
    for seed in (1, 2):
        x = torch.randn(60, 3, generator=torch.Generator().manual_seed(seed))
        y = ((x[:, 0] > 0) == (seed == 1)).long()
        torch.manual_seed(0)
        model = nn.Linear(3, 2) if kind == "linear" else perceptron(3, 6, 2)
        posterior = po.fit(model, (x, y), method=training, epochs=30, progress=False).posterior
        result = adapt(model, posterior, data=(x, y), add=added, forget=1.0, method=way)
        assert result.posterior.n == 60
        assert result.report.method == ("newton" if kind == "linear" else "anew")
        memory = result.posterior.memory
        assert memory is None or set(memory.ids.tolist()) <= set(result.report.added.tolist())
        found.append(torch.cat([p.detach().reshape(-1) for p in result.model.parameters()]))
        if kind == "linear":  # the optimum of the new data and of a prior about zero
            loss = nn.functional.cross_entropy(result.model(new), added[1], reduction="sum")
            for name, p in result.model.named_parameters():
                loss = loss + 0.5 * posterior.temperature * (posterior.prior.precision[name] * p.square()).sum()
            assert all(g.abs().max() < 1e-3 for g in torch.autograd.grad(loss, list(result.model.parameters())))
    if (kind, training) != ("linear", "variational"):  # where the prior is as wide as the old weights were large
        assert torch.equal(*found)
    with pytest.raises(po.PosterityError, match="forget"):
        adapt(model, posterior, data=(x, y), remove=[0], forget=1.0)


@pytest.mark.parametrize(("before", "forget"), [(0.25, 0.0), (0.75, 0.0), (0.75, 0.5)])
def test_a_past_that_counts_for_less_does_so_the_next_time_too(regression, before, forget):
    model, posterior, (x, y) = regression
    new, newer = logistic(40, seed=3, shift=0.3), logistic(30, seed=5, shift=-0.2)
    found = adapt(model, posterior, data=(x, y), add=new, forget=before)
    result = adapt(found.model, found.posterior, add=newer, forget=forget)
    rows, labels = np.concatenate((x, new[0], newer[0])), np.concatenate((y, new[1], newer[1]))[:, 0]
    weights = np.r_[np.full(80, (1 - before) * (1 - forget)), np.full(40, 1 - forget), np.ones(30)]
    wanted = weighted_optimum(rows, labels, weights)
    assert result.posterior.n == round(weights.sum())
    assert np.allclose(result.model.weight.detach().numpy().ravel(), wanted, atol=1e-6)


@pytest.mark.parametrize("change", ["remove", "relabel"])
def test_a_row_of_a_past_that_counts_for_less_takes_with_it_what_it_counts(regression, change):
    model, posterior, (x, y) = regression
    new = logistic(40, seed=3, shift=0.3)
    found = adapt(model, posterior, data=(x, y), add=new, forget=0.75)
    rows, labels = np.concatenate((x, new[0])), np.concatenate((y, new[1]))[:, 0]
    weights = np.r_[np.full(80, 0.25), np.ones(40)]
    if change == "remove":
        weights[:32] = 0.0
        request = {"remove": range(32)}
    else:
        labels[:32], weights[:32] = 1 - labels[:32], 1.0
        request = {"relabel": {i: torch.as_tensor(labels[i : i + 1]) for i in range(32)}}
    result = adapt(found.model, found.posterior, **request)
    wanted = weighted_optimum(rows, labels, weights)
    assert result.posterior.n == round(weights.sum())
    assert result.posterior.memory.weights.sum().item() == pytest.approx(weights.sum())
    assert np.allclose(result.model.weight.detach().numpy().ravel(), wanted, atol=1e-6)


@pytest.mark.parametrize("share", [0.0, 1e-6])
def test_forgetting_next_to_nothing_changes_next_to_nothing(share):
    """Also where a training has centred the prior at its weights, which forgetting moves back to zero."""
    torch.manual_seed(0)
    x, y = torch.randn(60, 3), torch.randint(0, 2, (60,))
    model = nn.Linear(3, 2)
    posterior = po.fit(model, (x, y), epochs=20, progress=False).posterior
    kept = posterior.discounted(share)
    for name, m in posterior.mean.items():
        assert torch.allclose(kept.mean[name], m, atol=1e-4)
    left = posterior.discounted(1.0)
    assert all(bool((m == 0).all()) for m in left.mean.values())
    chained = po.fit(model, (x, y), epochs=2, prior=posterior, forget=0.5, progress=False).posterior
    assert all(bool((m == 0).all()) for m in chained.discounted(1.0).mean.values())


def test_the_new_data_decide_how_much_is_forgotten(regression):
    model, posterior, _ = regression
    x, y = logistic(40, seed=3)
    same, turned = (adapt(model, posterior, add=(x, t), forget="auto").report.drift for t in (y, 1 - y))
    assert same.forget < turned.forget
    assert turned.found
    assert not same.found
    assert turned.against_keeping > 3
    with pytest.raises(po.PosterityError, match="forget"):
        adapt(model, posterior, data=regression[2], prior_precision=2.0, forget="auto")
    for bad in (-0.1, 1.1, "often", True):
        with pytest.raises(po.PosterityError, match="forget"):
            adapt(model, posterior, add=(x, y), forget=bad)


def test_a_discounted_posterior_is_the_prior_and_a_share_of_its_site(regression):
    _, posterior, _ = regression
    half = posterior.discounted(0.5)
    natural = (posterior - posterior.prior).scaled(0.5)
    precision = torch.eye(4).double() + natural.precision
    assert torch.allclose(half.structure.precision, precision)
    mean = torch.linalg.solve(precision, natural.linear["weight"].reshape(-1))
    assert torch.allclose(half.mean["weight"].reshape(-1), mean)
    assert torch.allclose(posterior.discounted(1.0).structure.precision, torch.eye(4).double())
    with pytest.raises(po.PosterityError, match="forget"):
        posterior.discounted(1.5)


def test_training_takes_a_discounted_posterior_as_its_prior():
    torch.manual_seed(0)
    x, y = torch.randn(60, 3), torch.randint(0, 2, (60,))
    model = nn.Linear(3, 2)
    posterior = po.fit(model, (x, y), method="ivon", epochs=2).posterior
    again = copy.deepcopy(model)
    run = po.fit(model, (x, 1 - y), method="ivon", epochs=1, prior=posterior, forget=0.5)
    same = po.fit(again, (x, 1 - y), method="ivon", epochs=1, prior=posterior.discounted(0.5))
    assert torch.equal(run.posterior.mean["weight"], same.posterior.mean["weight"])
    assert torch.equal(
        run.posterior.structure.precision_diagonal()["weight"], same.posterior.structure.precision_diagonal()["weight"]
    )
    po.fit(model, (x, y), method="ivon", epochs=1, prior=posterior, forget="auto")
    for bad in ({"forget": 0.5}, {"prior": posterior, "forget": 2.0}, {"prior": posterior, "forget": "never"}):
        with pytest.raises(po.PosterityError, match="forget"):
            po.fit(model, (x, y), method="ivon", epochs=1, **bad)


def test_a_chain_of_trainings_can_forget_all_that_came_before():
    torch.manual_seed(0)
    x, y = torch.randn(40, 3), torch.randint(0, 2, (40,))
    model = nn.Linear(3, 2)
    first = posterior = po.fit(model, (x, y), method="vogn", epochs=2, prior=2.0, ess=10.0).posterior
    for share in (0.5, 0.25):
        posterior = po.fit(model, (x, y), method="vogn", epochs=1, prior=posterior, forget=share).posterior
    assert (posterior.n, posterior.ess) == (85, 85.0)  # 40, then 0.5 · 40 + 40, then 0.75 · 60 + 40
    nothing = posterior.discounted(1.0).structure
    for name, p in first.prior.precision_diagonal().items():
        assert torch.allclose(nothing.precision_diagonal()[name], first.temperature * p.expand_as(nothing.mean[name]))
        assert torch.equal(nothing.mean[name], torch.zeros_like(nothing.mean[name]))


def chunks(turn, count=12, size=60, seed=0):
    rng = np.random.default_rng(seed)
    for t in range(count):
        x = rng.normal(size=(size, 2))
        w = 4 * np.array([np.cos(turn * t), np.sin(turn * t)])
        y = rng.uniform(size=size) < 1 / (1 + np.exp(-x @ w))
        yield torch.tensor(x), torch.tensor(y).double().unsqueeze(1)


@pytest.mark.parametrize(("turn", "rates"), [(0.0, (0.0, 0.2)), (0.5, (0.5, 1.0))])
def test_a_stream_finds_out_how_fast_the_world_moves(turn, rates):
    stream = po.Stream(nn.Linear(2, 1).double(), likelihood="bernoulli")
    for chunk in chunks(turn):
        stream.learn(chunk)
    history = stream.history
    assert rates[0] <= history["forget"].iloc[-1] <= rates[1]
    assert history["drift"].iloc[-1] == (turn > 0)
    assert history["accuracy"].iloc[-4:].mean() > 0.75
    assert stream.posterior.memory is None
    assert stream.predict(torch.zeros(3, 2).double()).probs.shape == (3, 1)


def test_a_stream_that_keeps_everything_is_all_data_at_once():
    """Linear regression: chunk after chunk is the same posterior as all of them together."""
    torch.manual_seed(0)
    x, y = torch.randn(60, 2).double(), torch.randn(60, 1).double()
    stream = po.Stream(nn.Linear(2, 1).double(), likelihood=likelihood("gaussian", precision=1.0), forget=0.0)
    for rows in torch.arange(60).split(13):
        stream.learn((x[rows], y[rows]))
    phi = torch.cat((x, torch.ones(60, 1)), 1)
    precision = phi.T @ phi + torch.eye(3)
    assert torch.allclose(stream.posterior.structure.precision, precision)
    mean = torch.linalg.solve(precision, phi.T @ y)[:, 0]
    assert torch.allclose(stream.model.weight[0], mean[:2])
    assert stream.posterior.n == 60
    assert stream.history["forget"].tolist()[1:] == [0.0] * 4
    assert not stream.history["drift"].any()


def test_a_stream_answers_by_the_mean_where_the_average_is_too_wide():
    """Digits have 650 weights: averaged over what 60 rows a chunk leave open, predictions say little."""
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor((x - x.mean(0)) / np.maximum(x.std(0), 1)), torch.tensor(y)
    stream = po.Stream(nn.Linear(64, 10).double(), likelihood="categorical", forget=0.2)
    for rows in torch.arange(240).split(60):
        stream.learn((x[rows], y[rows]))
    torch.testing.assert_close(stream.predict(x[:5]).probs, stream.model(x[:5]).softmax(-1).detach())
    few = po.Stream(nn.Linear(1, 1).double(), likelihood="bernoulli", prior_precision=0.01)
    for seed in range(6):  # three rows of noise a chunk: the mean is too sure of what they happened to be
        g = torch.Generator().manual_seed(seed)
        x = torch.randn(3, 1, generator=g).double()
        few.learn((x, (torch.rand(3, 1, generator=g) < 0.5).double()))
    assert not torch.allclose(few.predict(x).probs, few.model(x).sigmoid())


def test_a_stream_goes_on_where_it_stopped(tmp_path):
    parts = list(chunks(0.3, count=5))
    whole = po.Stream(nn.Linear(2, 1).double(), likelihood="bernoulli")
    first = po.Stream(nn.Linear(2, 1).double(), likelihood="bernoulli", folder=tmp_path / "s")
    for k, chunk in enumerate(parts):
        whole.learn(chunk)
        if k < 3:
            first.learn(chunk)
    again = po.Stream.load(tmp_path / "s", nn.Linear(2, 1).double())
    for chunk in parts[3:]:
        again.learn(chunk)
    pd.testing.assert_frame_equal(again.history, whole.history, check_exact=True)
    assert torch.equal(again.posterior.structure.precision, whole.posterior.structure.precision)
    assert len(list((tmp_path / "s").glob("chunk-*"))) == 1
    left = tmp_path / "s" / "chunk-6" / "9"  # of a process that was killed while it wrote the next chunk
    left.mkdir(parents=True)
    again.learn(parts[0])
    assert not left.exists()
    assert len(po.Stream.load(tmp_path / "s", nn.Linear(2, 1).double()).history) == 6
    with pytest.raises(po.PosterityError):
        po.Stream.load(tmp_path / "s", nn.Linear(3, 1).double())
    with pytest.raises(po.PosterityError, match="go on by"):
        po.Stream(nn.Linear(2, 1).double(), likelihood="bernoulli", folder=tmp_path / "s")


def test_a_bad_chunk_leaves_the_stream_as_it_was():
    stream = po.Stream(nn.Linear(2, 1).double(), likelihood="bernoulli")
    x, y = next(chunks(0.0))
    stream.learn((x, y))
    before = stream.posterior.structure.precision.clone()
    hole = x.clone()
    hole[3, 1] = float("nan")
    for bad in ((x[:, :1], y), (x[:0], y[:0]), (hole, y), (x, 7 * y)):
        with pytest.raises(po.PosterityError):
            stream.learn(bad)
    assert len(stream.history) == 1
    assert torch.equal(stream.posterior.structure.precision, before)
    new = po.Stream(nn.Linear(2, 1).double(), likelihood="bernoulli")
    with pytest.raises(po.PosterityError, match="inputs: expected what the model takes, got float64"):
        new.learn((x[:, :1], y))  # the first chunk is checked like the others
    with pytest.raises(po.PosterityError, match="at least one chunk"):
        new.predict(x)


def test_a_network_in_a_stream_remembers_so_many():
    torch.manual_seed(0)
    network = perceptron(2, 8, 1)
    settings = {"method": "ivon", "epochs": 5}
    stream = po.Stream(network, likelihood="bernoulli", forget=0.2, memory=20, **settings)
    for x, y in chunks(0.1, count=3):
        stream.learn((x.float(), y.float()))
    assert len(stream.posterior.memory) == 20
    assert list(stream.history["forget"].iloc[1:]) == [0.2, 0.2]
    assert stream.history["loss"].iloc[1:].notna().all()


def test_a_network_in_a_stream_follows_labels_that_turn_around():
    """Weights of order one have to change their signs, which is farther than a first descent at its small rate goes."""
    torch.manual_seed(0)
    stream = po.Stream(perceptron(3, 8, 2), likelihood="categorical", epochs=150)
    x = torch.randn(80, 3)
    y = (x[:, 0] > 0).long()
    stream.learn((x, y))
    assert stream.learn((x, 1 - y))["accuracy"] < 0.1
    assert (stream.predict(x).probs.argmax(-1) == 1 - y).double().mean() > 0.9


def test_a_network_at_its_optimum_takes_one_round_of_steps():
    torch.manual_seed(0)
    model, x = perceptron(3, 8, 2), torch.randn(80, 3)
    y = (x[:, 0] > 0).long()
    posterior = po.fit(model, (x, y), epochs=150).posterior
    assert adapt(model, posterior, add=(x[:20], y[:20])).report.steps == 500
    assert adapt(model, posterior, add=(x, 1 - y), forget=0.95).report.steps > 500
    assert adapt(model, posterior, add=(x, 1 - y), forget=0.95, epochs=30).report.steps == 30


def test_the_first_chunk_of_a_stream_decides_the_noise_of_a_regression():
    """Against the residual variance of least squares, to which 8 rounds and a weak prior come within a percent."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 3, generator=generator, dtype=torch.float64)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]]).double() + 0.3 * torch.randn(200, 1, generator=generator).double()
    stream = po.Stream(nn.Linear(3, 1).double(), likelihood="gaussian")
    for chunk in zip(x.split(100), y.split(100), strict=True):
        stream.learn(chunk)
    first = torch.cat((x[:100], torch.ones(100, 1).double()), 1)
    residual = y[:100] - first @ torch.linalg.lstsq(first, y[:100]).solution
    expected = (residual.square().sum() / (100 - 4)).sqrt()
    assert torch.allclose(stream.predict(x[:5]).noise_std, expected.expand(5, 1), rtol=0.01)

    given = po.Stream(nn.Linear(3, 1).double(), likelihood=likelihood("gaussian", precision=4.0))
    given.learn((x, y))
    assert torch.allclose(given.predict(x[:5]).noise_std, torch.full((5, 1), 0.5).double())


def test_where_nothing_is_to_be_forgotten_the_old_data_are_used():
    torch.manual_seed(0)
    x = torch.randn(300, 2)
    y = (x[:, 0] * x[:, 1] > 0).long()
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    posterior = po.fit(model, (x[:200], y[:200]), method="ivon", epochs=40, progress=False).posterior
    found = adapt(model, posterior, data=(x[:200], y[:200]), add=(x[200:], y[200:]), forget="auto").report
    plain = adapt(model, posterior, data=(x[:200], y[:200]), add=(x[200:], y[200:])).report
    assert found.drift.forget == 0
    assert (found.method, found.why) == (plain.method, plain.why)
    assert found.method == "warm_start"


@pytest.mark.parametrize(("nats", "rate"), [(2.0, 0.8), (4.0, 1.0)])
def test_a_network_forgets_everything_only_where_the_change_is_clear(monkeypatch, nats, rate):
    found = {0.8: 1.0, 1.0: nats}
    monkeypatch.setattr(forgetting, "_predictive", lambda problem, rate: found.get(rate, 0.0))
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    run = po.fit(perceptron(4, 5, 2), (x, y), epochs=1, progress=False)
    drift = adapt(run.model, run.posterior, data=(x, y), add=(x[:8], y[:8]), forget="auto", epochs=1).report.drift
    assert (drift.forget, drift.against_keeping, drift.found) == (rate, found[rate], nats > 3)
