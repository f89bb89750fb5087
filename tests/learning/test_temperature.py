"""The temperature of a Laplace posterior: what the default is, what it gains, and what it leaves alone."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import posterity as po
from networks import perceptron
from posterity.errors import InvalidInput
from posterity.learning import log_marginal_likelihood, temperature

STRUCTURES = ("diag", "kron", "full", "last_layer")


def points(n, seed):
    """Two overlapping classes on the plane."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 2, generator=g)
    return x, (x[:, 0] * x[:, 1] + 0.5 * torch.randn(n, generator=g) > 0).long()


@pytest.fixture(scope="module")
def overfitted():
    """A network that has memorised 60 noisy labels, and 2000 points to test it on."""
    torch.manual_seed(0)
    x, y = points(60, 1)
    model = perceptron(2, 30, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    for _ in range(600):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model, (x, y), points(2000, 2)


def nll(model, posterior, data, **how):
    return po.metrics.nll(po.predict(model, posterior, data[0], **how).probs, data[1])


@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_default_is_ahead_of_the_mean_where_plain_laplace_is_not_as_good(overfitted, structure):
    model, train, test = overfitted
    default, plain = (
        po.laplace(model, train, structure=structure),
        po.laplace(model, train, structure=structure, temperature=1),
    )
    at_mean = nll(model, default, test, samples=0)
    assert nll(model, default, test) < at_mean
    assert default.temperature < 1 == plain.temperature
    assert nll(model, default, train) < nll(model, plain, train)


def binary():
    """One output, so that `predict` draws the same numbers as the choice of the temperature does."""
    torch.manual_seed(0)
    x, y = points(50, 3)
    model, target = perceptron(2, 20, 1).double(), y.double().unsqueeze(1)
    x = x.double()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    for _ in range(1500):
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(x), target).backward()
        optimizer.step()
    return model, (x, target)


def underconfidence(model, data, t):
    posterior = po.laplace(model, data, likelihood="bernoulli", structure="diag", temperature=t)
    p = po.predict(model, posterior, data[0], samples=temperature.DRAWS)
    return p.entropy.mean().item() - nn.functional.binary_cross_entropy(p.mean, data[1]).item()


def test_it_is_the_largest_temperature_within_the_bound():
    model, data = binary()
    t = po.laplace(model, data, likelihood="bernoulli", structure="diag").temperature
    assert t < 1
    assert underconfidence(model, data, t) <= temperature.UNDERCONFIDENCE
    assert underconfidence(model, data, t * 10**0.25) > temperature.UNDERCONFIDENCE


def test_an_underconfident_network_keeps_a_width_that_costs_a_thousandth(overfitted):
    _, train, _ = overfitted
    torch.manual_seed(1)
    untrained = perceptron(2, 30, 2)
    with torch.no_grad():
        for p in untrained.parameters():
            p.mul_(0.1)
    posterior = po.laplace(untrained, train, structure="full", prior_precision="marglik")
    found = po.laplace(untrained, train, structure="full")
    costs = nll(untrained, found, train) / nll(untrained, found, train, samples=0)
    assert found.temperature <= posterior.temperature == 1
    assert costs < 1.01  # other draws than those that decided


@pytest.mark.parametrize("given", [1.0, "marglik", "marglik_layerwise"])
def test_a_prior_that_is_given_leaves_laplace_as_it_is(overfitted, given):
    model, train, _ = overfitted
    posterior = po.laplace(model, train, structure="diag", prior_precision=given)
    assert posterior.ess == posterior.n == 60


def test_a_regression_has_temperature_one():
    x = torch.linspace(-1, 1, 30).unsqueeze(1)
    posterior = po.laplace(nn.Linear(1, 1), (x, torch.sin(3 * x)))
    assert posterior.temperature == 1


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_temperature_scales_the_covariance_and_nothing_that_is_asked_at_temperature_one(overfitted, structure):
    model, train, _ = overfitted
    model = copy.deepcopy(model).double()
    train = train[0].double(), train[1]
    plain, cold = (
        po.laplace(model, train, structure=structure, prior_precision=2.0, temperature=t) for t in (1.0, 0.1)
    )
    assert (cold.ess, cold.n) == (600.0, 60)
    for name, v in plain.variance.items():
        torch.testing.assert_close(cold.variance[name], 0.1 * v)
    V = [po.curvature.prediction_covariance(model, train[0], q.covariance(untempered=True)) for q in (plain, cold)]
    torch.testing.assert_close(V[0], V[1])
    evidence = [log_marginal_likelihood(model, q, train) for q in (plain, cold)]
    assert evidence[0] == pytest.approx(evidence[1], rel=1e-9)


def test_loaders_and_many_outputs(overfitted, monkeypatch):
    model, train, _ = overfitted
    loader = DataLoader(TensorDataset(*train), batch_size=16)
    tensors, loaded = po.laplace(model, train), po.laplace(model, loader)
    assert tensors.temperature == loaded.temperature < 1
    monkeypatch.setattr(temperature, "ROOM", 3)  # not one covariance of two outputs
    assert po.laplace(model, train).temperature == 1


def test_fit_takes_a_temperature():
    x, y = points(40, 4)
    run = po.fit(nn.Linear(2, 2), (x, y), method="laplace", temperature=0.5, epochs=2)
    assert run.posterior.temperature == 0.5


def test_a_temperature_has_to_be_positive(overfitted):
    model, train, _ = overfitted
    with pytest.raises(InvalidInput, match="temperature: expected a positive"):
        po.laplace(model, train, temperature=0.0)
