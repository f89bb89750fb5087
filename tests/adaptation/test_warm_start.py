"""Networks whose old data are given: trained on the corrected data, held to the objective of retraining."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import posterity as po
from adaptation.problems import logistic, tanh_network
from posterity.adaptation import adapt
from posterity.adaptation.solve import anew
from posterity.adaptation.solve.warm_start import Corrected
from posterity.batches import Batch
from posterity.learning.starts import reinitialised
from posterity.noise import Key, normal
from posterity.posterior import Diagonal, Posterior

N = 120


@pytest.fixture(scope="module")
def trained():
    x, y = logistic(N)
    model = tanh_network(x, y)
    return model, po.laplace(model, (x, y), likelihood="bernoulli", structure="diag", prior_precision=1.0), (x, y)


def objective(model, x, y):
    loss = nn.functional.binary_cross_entropy_with_logits(model(x), y, reduction="sum")
    return (loss + 0.5 * sum(p.square().sum() for p in model.parameters())).item()


def test_the_way_follows_from_what_is_at_hand(trained):
    model, posterior, data = trained
    new = (data[0][:5] + 0.1, data[1][:5])
    with_data = adapt(model, posterior, data=data, add=new, epochs=1)
    assert with_data.report.method == "warm_start"
    assert "were given" in with_data.report.why
    memory = with_data.posterior.memory
    assert len(memory) == 13  # one old example in ten, and of the new ones as many
    without = adapt(with_data.model, with_data.posterior, add=new, epochs=1)
    assert without.report.method == "kprior"
    assert "not given" in without.report.why
    line = nn.Linear(4, 1).double()
    full = po.laplace(line, data, likelihood="bernoulli", structure="full", prior_precision=1.0)
    assert adapt(line, full, data=data, add=new).report.method == "newton"
    with pytest.raises(po.PosterityError, match="data beside a warm start"):
        adapt(model, posterior, add=new, method="warm_start")


@pytest.mark.parametrize("change", [{"remove": range(10)}, {"relabel": {3: [1.0], 4: [0.0]}}, {"remove": [7]}])
def test_the_objective_of_retraining_falls_and_is_reported(trained, change):
    model, posterior, (x, y) = trained
    result = adapt(model, posterior, data=(x, y), **change)
    gone = torch.tensor([i in change.get("remove", ()) for i in range(N)])
    now = y.clone()
    for i, target in change.get("relabel", {}).items():
        now[i] = torch.tensor(target)
    before, after = (objective(m, x[~gone], now[~gone]) for m in (model, result.model))
    assert after <= before
    assert result.report.table.loc["no adaptation", "objective"] == pytest.approx(before)
    assert result.report.table.loc["adapted", "objective"] == pytest.approx(after)
    assert result.posterior.n == N - int(gone.sum())


def test_weights_at_the_optimum_stay_where_nothing_helps(trained):
    """Relabelling to the label that was there changes nothing; the steps cannot lower the objective, and are undone."""
    model, posterior, (x, y) = trained
    result = adapt(model, posterior, data=(x, y), relabel={0: y[0].tolist()}, lr=0.3, epochs=2)
    assert result.report.steps == 2  # the second half is not taken
    for name, p in model.named_parameters():
        assert torch.equal(p, dict(result.model.named_parameters())[name])


def test_few_changed_examples_are_in_every_batch_without_bias():
    x = torch.arange(1000.0).unsqueeze(1)
    data = Batch(x, x, torch.arange(1000))
    prior = Diagonal({"w": torch.zeros(1)}, {"w": torch.ones(1)})
    task = Corrected(data, 3, po.likelihoods.GaussianLikelihood(), prior, 1.0)
    seen = torch.zeros(1000)
    for rows, shares in task.batches(64, 997 // 61, 0):  # one pass over the others
        assert (rows >= 997).sum() == 3
        assert shares.sum().item() == pytest.approx(1)
        seen.index_add_(0, rows, shares)
    mean = seen / (997 // 61)
    assert mean[997:].tolist() == pytest.approx([1e-3] * 3)
    assert ((mean[:997] == 0) | (mean[:997] - 997 / 1000 / 61 / 16).abs().lt(1e-8)).all()


@pytest.fixture
def positions(monkeypatch):
    """Weights of the first layer in every step of an adaptation, noise included."""
    seen, losses = [], Corrected.losses
    monkeypatch.setattr(
        Corrected, "losses", lambda self, m, rows: seen.append(m[0].weight.detach().clone()) or losses(self, m, rows)
    )
    return seen


def test_weights_are_trained_with_noise_as_wide_as_the_old_posterior(fitted, positions):
    model, posterior, (x, y) = fitted
    result = adapt(model, posterior, data=(x, y), relabel={0: 1 - int(y[0])}, epochs=300, lr=1e-9)
    torch.testing.assert_close(result.model[0].weight, model[0].weight)  # the noise is taken back
    away, std = torch.stack(positions) - result.model[0].weight, posterior.variance["0.weight"].sqrt()
    assert torch.allclose(away.std(0), std, rtol=0.15)  # of 900 draws: six standard errors
    assert (away.mean(0).abs() < 6 * std / len(away) ** 0.5).all()


def test_the_noise_of_a_warm_start_is_the_counters(fitted, positions):
    """Step s of W weights draws normals at (s % k) W of the key (seed, 1 + s // k), k steps at a time."""
    model, posterior, (x, y) = fitted
    adapt(model, posterior, data=(x, y), relabel={0: 1 - int(y[0])}, epochs=1, lr=1e-12, seed=5)
    weights = sum(p.numel() for p in model.parameters())
    for step, there in enumerate(positions):
        drawn = normal(Key(5, 1), model[0].weight.numel(), start=step * weights).view_as(there)
        wanted = model[0].weight + posterior.variance["0.weight"].sqrt() * drawn
        torch.testing.assert_close(there, wanted, atol=1e-5, rtol=0)  # sums of float32, and normals in C


def test_a_comparison_has_retraining_and_a_plain_warm_start(trained, monkeypatch):
    monkeypatch.setattr(anew, "STEPS", 100)
    model, posterior, (x, y) = trained
    report = adapt(model, posterior, data=(x, y), remove=range(10), compare=True).report
    assert list(report.table.index) == ["no adaptation", "adapted", "plain warm start", "retrained"]
    assert report.table["loss on removed"].notna().all()
    with pytest.raises(po.PosterityError, match="data beside it"):
        adapt(model, posterior, add=(x[:1], y[:1]), compare=True)


def test_what_is_frozen_after_training_stays_and_the_rest_is_adapted(trained):
    model, posterior, data = trained
    part = copy.deepcopy(model)
    name, frozen = next(part.named_parameters())
    frozen.requires_grad_(False)
    found = adapt(part, posterior, data=data, remove=[0, 1], epochs=1)
    assert found.posterior.names == tuple(other for other in posterior.names if other != name)
    assert torch.equal(dict(found.model.named_parameters())[name], frozen)
    assert all((p > 0).all() for p in found.posterior.structure.precision.values())


def test_labels_may_be_truth_values(trained):
    model, posterior, (x, y) = trained
    whole, truths = (adapt(model, posterior, data=(x, t), remove=[0, 1], epochs=1) for t in (y % 2, y % 2 == 1))
    for name, m in whole.posterior.mean.items():
        assert torch.equal(truths.posterior.mean[name], m)


def test_a_network_that_cannot_be_started_anew_is_not_retrained(trained):
    model, posterior, (x, y) = trained
    fixed = copy.deepcopy(model)
    fixed[0].reset_parameters = None  # as a module without the method
    report = adapt(fixed, posterior, data=(x, y), remove=[0], epochs=1, compare=True).report
    assert "retrained" not in report.table.index
    assert any(note.startswith("not retrained for comparison") for note in report.notes)
    with pytest.raises(po.PosterityError, match="reset_parameters"):
        adapt(fixed, posterior, add=(x, y), forget=1.0)
    turned = adapt(fixed, posterior, add=(x, 1 - y), forget="auto", epochs=1).report.drift
    assert 0 < turned.forget < 1
    assert 1.0 not in turned.evidence


@pytest.fixture(scope="module")
def fitted():
    torch.manual_seed(0)
    x = torch.randn(160, 4)
    y = (x[:, 0] + 0.5 * torch.randn(160) > 0).long()
    run = po.fit(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), (x, y), epochs=20, progress=False)
    return run.model, run.posterior, (x, y)


def test_a_network_trains_for_a_share_of_its_old_training(fitted):
    """Batches of 54, 20 epochs: 10 % of 60 steps and a little for one example among 161, 65 % of 80 for 20 more."""
    model, posterior, data = fitted
    assert posterior.training == (20.0, 54, 3e-3)
    one = adapt(model, posterior, data=data, add=(data[0][:1], data[1][:1]))
    assert one.report.steps == round((0.1 + 0.3 * 1 / (0.08 * 161)) * 20 * 3)
    many = adapt(model, posterior, data=data, add=(data[0][:20], data[1][:20]))
    assert many.report.steps == round(0.65 * 20 * 4)
    assert adapt(model, posterior, data=data, add=data, epochs=1).report.steps == 6


def test_a_prior_that_decided_widths_alone_pulls_no_means(fitted):
    model, posterior, data = fitted
    assert not posterior.prior_pulls
    result = adapt(model, posterior, data=data, relabel={0: 1 - int(data[1][0])})
    assert not result.posterior.prior_pulls  # nor will it in the next adaptation
    assert result.posterior.training == posterior.training
    x, y = data[0], data[1].clone()
    y[0] = 1 - y[0]
    loss = nn.functional.cross_entropy(result.model(x), y, reduction="sum").item()
    assert result.report.table.loc["adapted", "objective"] == pytest.approx(loss, rel=1e-5)


def test_a_perceptron_learns_much_again_from_mostly_new_weights(fitted, positions):
    """A rate of next to nothing leaves the weights where training set out; noise begins with a fifth of its width."""
    model, posterior, data = fitted
    new = reinitialised(model, 3, 1)
    learnt = adapt(model, posterior, data=data, add=data, epochs=40, lr=1e-12, seed=3).model
    for old, fresh, there in zip(model.parameters(), new.parameters(), learnt.parameters()):
        torch.testing.assert_close(there, 0.2 * old + 0.8 * fresh)
    away = (torch.stack(positions) - learnt[0].weight) / posterior.variance["0.weight"].sqrt()
    assert away[:10].std().item() == pytest.approx(0.2 + 0.8 * (5 / 240) ** 0.5, rel=0.15)
    assert away[-10:].std().item() == pytest.approx(1.0, rel=0.15)
    del positions[:]
    short = adapt(model, posterior, data=data, add=data, epochs=1, lr=1e-12).model  # too short to begin again
    for old, there in zip(model.parameters(), short.parameters()):
        torch.testing.assert_close(there, old)


def test_where_wrong_labels_go_training_takes_longer():
    """They had kept the old training short; the next adaptation knows the new length."""
    torch.manual_seed(0)
    x = torch.randn(160, 4)
    y = (x[:, 0] > 0).long()
    y[:10] = 1 - y[:10]
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    posterior = po.fit(model, (x, y), epochs=150, progress=False).posterior
    found = {
        "wrong": adapt(model, posterior, data=(x, y), remove=range(10)),
        "right": adapt(model, posterior, data=(x, y), remove=range(100, 110)),
        "relabelled": adapt(model, posterior, data=(x, y), relabel={i: 1 - int(y[i]) for i in range(10)}),
    }
    epochs = {name: result.posterior.training.epochs for name, result in found.items()}
    for name, result in found.items():
        assert result.report.steps == round(0.65 * epochs[name] * 3)
    assert epochs["right"] == pytest.approx(150, rel=0.05)
    assert min(epochs["wrong"], epochs["relabelled"]) > 1.2 * epochs["right"]
    most = adapt(model, posterior, data=(x, y), relabel={i: 1 - int(y[i]) for i in range(159)})
    assert most.posterior.training.epochs == 667  # 2000 steps, of three an epoch: no training by fit is longer
    every = adapt(model, posterior, data=(x, y), relabel={i: 1 - int(y[i]) for i in range(160)})
    assert every.posterior.training.epochs == 150  # nothing stays to compare with


def test_a_prior_pulls_where_nothing_was_trained_yet():
    """Before the first data mean and prior are both 0: the prior stays there in every later adaptation."""
    model = nn.Linear(2, 1).double()
    zero = {name: torch.zeros_like(p) for name, p in model.state_dict().items()}
    prior = Diagonal.isotropic(zero, 2.0)
    posterior = Posterior.of(model, prior, prior=prior, n=1, ess=1.0, likelihood="gaussian")
    assert posterior.prior_pulls
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0)).double()
    result = adapt(model, posterior, add=(x, x[:, :1]), method="ewc")
    assert all(torch.equal(m, torch.zeros_like(m)) for m in result.posterior.prior.mean.values())
