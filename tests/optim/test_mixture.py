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


def wells(distance):
    """−log of ½N(−a, 0.6²) + ½N(a, 0.6²), up to a constant."""
    return lambda x: -torch.logsumexp(torch.stack([-(((x - m) / 0.6) ** 2) / 2 for m in (-distance, distance)]), 0)


def train(starts, value, repel=True, steps=120):
    """Means and precisions of two components, averaged over the last half of the steps."""
    models = [Scalar(start) for start in starts]
    optimizer = MixtureIVON(models, lr=0.1, ess=1.0, hess_init=3.0, weight_decay=0.0, mc_samples=8)
    kept = []

    def closure():
        optimizer.zero_grad()
        total = sum(value(model.weight).sum() for model in models)
        (total + optimizer.repulsion() if repel else total).backward()

    for t in range(steps):
        optimizer.param_groups[0].update(lr=0.1 / (1 + t / 50), betas=(0.9, 1 - 2 / (t + 20)))
        optimizer.step(closure)
        kept.append([(m.weight.item(), optimizer.state[m.weight]["hessian"].item()) for m in models])
    averages = torch.tensor(kept[steps // 2 :], dtype=torch.float64).mean(0)
    return averages[:, 0], averages[:, 1], optimizer.posterior(models[0], likelihood="gaussian", n=1)


def test_two_modes_get_two_components():
    means, precisions, posterior = train((-1.5, 1.5), wells(2.0))
    assert means.tolist() == pytest.approx([-2.0, 2.0], abs=0.15)
    assert precisions.rsqrt().tolist() == pytest.approx([0.6, 0.6], rel=0.15)
    assert isinstance(posterior.structure, Mixture)
    assert posterior.variance["weight"].item() == pytest.approx(4 + 0.36, rel=0.2)


def test_overlapping_components_keep_apart_and_come_closer_to_the_target():
    """Where one Gaussian would cover both modes, two that know of each other share them, and the bound is better."""
    target, grid = wells(0.9), torch.linspace(-6, 6, 2001, dtype=torch.float64)
    evidence = torch.trapezoid((-target(grid)).exp(), grid).log().item()
    divergence, distance = {}, {}
    for repel in (False, True):
        means, precisions, _ = train((-0.4, 0.4), target, repel)
        normals = [
            torch.distributions.Normal(m, s**-0.5).log_prob(grid) for m, s in zip(means, precisions, strict=True)
        ]
        logs = torch.logsumexp(torch.stack(normals), 0) - math.log(2)
        divergence[repel] = torch.trapezoid(logs.exp() * (logs + target(grid)), grid).item() + evidence
        distance[repel] = (means[1] - means[0]).abs().item()
    assert distance[True] > distance[False] + 0.5
    assert 0 <= divergence[True] < 0.5 * divergence[False]


def test_bad_input():
    with pytest.raises(InvalidInput, match="at least one network"):
        MixtureIVON([], lr=0.1, ess=10)
    for wrong in (nn.Linear(2, 1), [1, 2], None):
        with pytest.raises(InvalidInput, match="models: expected a list of at least one network"):
            MixtureIVON(wrong, lr=0.1, ess=10)
    with pytest.raises(InvalidInput, match="weights of their own"):
        MixtureIVON([nn.Linear(2, 1)] * 2, lr=0.1, ess=10)
    with pytest.raises(InvalidInput, match="models"):
        MixtureIVON([nn.Linear(2, 1), nn.Linear(3, 1)], lr=0.1, ess=10)
    assert math.isclose(MixtureIVON([nn.Linear(2, 1)], lr=0.1, ess=10).param_groups[0]["ess"], 10)
