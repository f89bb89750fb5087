"""MixtureIVON: the repulsion is what the bound of a mixture says, and two modes get two components."""

import math

import pytest
import torch
from torch import nn

from optim.reference import data, loss, network
from posterity.errors import InvalidInput
from posterity.optim import IVON, MixtureIVON
from posterity.posterior import Mixture


class Scalar(nn.Module):
    def __init__(self, value, copies=1):
        super().__init__()
        self.weight = nn.Parameter(torch.full((copies,), value, dtype=torch.float64))


def test_the_repulsion_is_minus_the_log_responsibility():
    models = [Scalar(0.0), Scalar(0.3)]
    optimizer = MixtureIVON(models, lr=0.1, ess=10.0, hess_init=2.0, weight_decay=0.5)
    with optimizer.sampled_params(train=True):
        optimizer.repulsion().backward()
        draws = [m.weight.item() for m in models]
    expected = 0.0
    for c, model in enumerate(models):
        theta = torch.tensor(draws[c], dtype=torch.float64, requires_grad=True)
        normals = [torch.distributions.Normal(mean, 25**-0.5) for mean in (0.0, 0.3)]
        logs = torch.stack([q.log_prob(theta) for q in normals])
        value = -(logs[c] - torch.logsumexp(logs, 0)) / 10
        value.backward()
        expected += value.item()
        assert model.weight.grad.item() == pytest.approx(theta.grad.item(), rel=1e-6)
    with optimizer.sampled_params(train=True):
        pass
    with pytest.raises(InvalidInput, match="samples in place"):
        optimizer.repulsion()


def test_far_apart_it_is_an_ensemble_of_ivons():
    torch.manual_seed(0)
    one, other = [network(0), network(1)], [network(0), network(1)]
    inputs, targets = data()
    mixture = MixtureIVON(one, lr=0.1, ess=1e9)
    plain = IVON([p for model in other for p in model.parameters()], lr=0.1, ess=1e9)
    for _ in range(5):
        with mixture.sampled_params(train=True):
            (sum(loss(model, inputs, targets) for model in one) + mixture.repulsion()).backward()
        with plain.sampled_params(train=True):
            sum(loss(model, inputs, targets) for model in other).backward()
        for optimizer in (mixture, plain):
            optimizer.step()
            optimizer.zero_grad()
    for p, q in zip(one[1].parameters(), other[1].parameters(), strict=True):
        torch.testing.assert_close(p, q)


def two_wells(theta):
    """−log of ½N(−2, 0.6²) + ½N(2, 0.6²), up to a constant."""
    return -torch.logsumexp(torch.stack([-(((theta - m) / 0.6) ** 2) / 2 for m in (-2.0, 2.0)]), 0)


def one_well(theta):
    """A Student-t: one mode, and tails that a single Gaussian misses."""
    return 2.0 * torch.log1p(theta**2 / 3)


def train(models, value, steps=400, repel=True):
    optimizer = MixtureIVON(models, lr=0.1, ess=1.0, hess_init=1.0, weight_decay=0.0, betas=(0.9, 0.99))
    kept = []
    for t in range(steps):
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + t / 100)
        with optimizer.sampled_params(train=True):
            total = sum(value(model.weight).sum() for model in models)
            (total + optimizer.repulsion() if repel else total).backward()
        optimizer.step()
        optimizer.zero_grad()
        if t >= steps // 2:
            kept.append(torch.stack([m.weight.detach().clone() for m in models]))
    return optimizer, torch.stack(kept).mean(0)


def test_two_modes_get_two_components():
    models = [Scalar(-1.5), Scalar(1.5)]
    optimizer, means = train(models, two_wells)
    posterior = optimizer.posterior(models[0], likelihood="gaussian", n=1)
    assert isinstance(posterior.structure, Mixture)
    assert sorted(means.flatten().tolist()) == pytest.approx([-2.0, 2.0], abs=0.25)
    assert posterior.variance["weight"].item() == pytest.approx(4 + 0.36, rel=0.25)


def test_overlapping_components_come_closer_to_the_target_than_copies_of_one():
    """Started side by side on one mode, repelled components spread out, and the bound improves; plain ones collapse."""
    grid = torch.linspace(-12, 12, 4001, dtype=torch.float64)
    evidence = torch.trapezoid((-one_well(grid)).exp(), grid).log().item()

    def divergence(models, optimizer):
        q = optimizer.posterior(models[0], likelihood="gaussian", n=1).structure
        logs = torch.stack([q.log_prob({"weight": x[None]}) for x in grid[::50]])
        return torch.trapezoid(logs.exp() * (logs + one_well(grid[::50])), grid[::50]).item() + evidence

    results = {}
    for repel in (False, True):
        models = [Scalar(-0.4), Scalar(0.4)]
        optimizer, means = train(models, one_well, steps=500, repel=repel)
        results[repel] = divergence(models, optimizer), (means[1] - means[0]).item()
    assert results[True][1] > results[False][1] + 0.5
    assert 0 <= results[True][0] < results[False][0]


def test_bad_input():
    with pytest.raises(InvalidInput, match="at least one network"):
        MixtureIVON([], lr=0.1, ess=10)
    with pytest.raises(InvalidInput, match="models"):
        MixtureIVON([nn.Linear(2, 1), nn.Linear(3, 1)], lr=0.1, ess=10)
    assert math.isclose(MixtureIVON([nn.Linear(2, 1)], lr=0.1, ess=10).param_groups[0]["ess"], 10)
