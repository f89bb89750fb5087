"""Variational Newton: exact Gaussian inference where that can be computed, and samples of the full covariance."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from optim.oracles import PRIOR_PRECISION, gaussian_logistic, logistic_data
from optim.reference import data, loss, network
from posterity.errors import InvalidInput
from posterity.linalg import retract
from posterity.optim import VariationalNewton, variational_newton
from posterity.posterior import Full


def newton(weight, n, **options):
    return VariationalNewton([weight], ess=n, weight_decay=PRIOR_PRECISION / n, **{"hess_init": 0.2, **options})


def train(optimizer, weight, value, steps, rate=lambda t: {}):
    def closure():
        optimizer.zero_grad()
        value(weight).backward()

    for t in range(steps):
        optimizer.param_groups[0].update(rate(t))
        optimizer.step(closure)


def logistic():
    inputs, labels, _, _ = logistic_data(100)
    weight = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    return inputs, labels, weight, lambda w: F.binary_cross_entropy_with_logits(inputs @ w, labels)


def test_with_cubature_for_noise_it_is_exact_gaussian_inference(monkeypatch):
    """Twelve draws that integrate polynomials of degree five exactly take the place of Monte Carlo."""
    inputs, labels, weight, value = logistic()
    angles = torch.arange(6, dtype=torch.float64) * torch.pi / 3  # a hexagon of radius 2, and the origin as often
    draws = itertools.cycle([*(2 * torch.stack([angles.cos(), angles.sin()], 1)), *torch.zeros(6, 2).double()])
    monkeypatch.setattr(variational_newton, "normal", lambda *_, **__: next(draws))
    optimizer = newton(weight, 100, lr=0.5, rho=0.5, beta1=0.0, mc_samples=12)
    train(optimizer, weight, value, 40)
    mean, precision = gaussian_logistic(inputs, labels)
    structure = optimizer.posterior(_Model(weight), likelihood="bernoulli", n=100).structure
    assert isinstance(structure, Full)
    torch.testing.assert_close(weight.detach(), mean, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(structure.precision, precision, rtol=1e-3, atol=1e-3 * float(precision.max()))


def test_with_its_own_noise_it_comes_close():
    inputs, labels, weight, value = logistic()
    mean, precision = gaussian_logistic(inputs, labels)
    optimizer = newton(weight, 100, lr=0.2, rho=0.02)
    train(optimizer, weight, value, 800, lambda t: {"lr": 0.3 / (1 + t / 50), "rho": 2 / (t + 40)})
    found = optimizer._matrix()
    torch.testing.assert_close(weight.detach(), mean, rtol=0, atol=0.06)  # a quarter of σ
    torch.testing.assert_close(found, precision, rtol=0, atol=0.1 * float(precision.max()))


def test_trajectory_over_several_parameters():
    """Line by line, with the samples that the optimizer drew, over all parameters of a network at once."""
    model, (inputs, targets) = network().double(), data()
    inputs = inputs.double()
    optimizer = VariationalNewton(model.parameters(), lr=0.3, ess=50, rho=0.01, hess_init=0.5, weight_decay=0.1)
    mean = torch.cat([p.detach().flatten() for p in model.parameters()])
    momentum, precision = torch.zeros_like(mean), torch.eye(len(mean)).double() * 50 * 0.6
    for t in range(1, 6):
        with optimizer.sampled_params(train=True):
            noise = torch.cat([p.detach().flatten() for p in model.parameters()]) - mean
            loss(model, inputs, targets).backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        optimizer.step()
        optimizer.zero_grad()
        momentum = 0.9 * momentum + 0.1 * gradient
        force = 50 * (momentum / (1 - 0.9**t) + 0.1 * mean)
        outer = 50 * torch.outer(precision @ noise, gradient)
        hessian = 0.5 * (outer + outer.T) + 5 * torch.eye(len(mean))
        mean = mean - 0.3 * torch.linalg.solve(precision, force)
        precision = retract(precision, hessian - precision, 0.01)
        found = torch.cat([p.detach().flatten() for p in model.parameters()])
        torch.testing.assert_close(found, mean, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(optimizer._matrix(), precision, rtol=1e-8, atol=1e-8)


def test_samples_have_the_full_covariance():
    weight = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = newton(weight, 10, lr=0.0)
    optimizer.step(lambda: (weight.sum() ** 2).backward())
    precision = torch.tensor([[4.0, 3.0], [3.0, 4.0]], dtype=torch.float64)
    optimizer.state[weight]["precision"] = precision
    draws = []
    for _ in range(1500):
        with optimizer.sampled_params():
            draws.append(weight.detach().clone())
    torch.testing.assert_close(torch.stack(draws).T.cov(), torch.linalg.inv(precision), rtol=0.1, atol=0.06)


@pytest.mark.parametrize("clip", [False, True])
def test_accumulated_samples_keep_their_own_gradients(clip):
    """Two contexts a step, with half the loss each: the outer products belong to their samples, clipped or not."""
    weight = torch.nn.Parameter(torch.tensor([1.0, -1.0], dtype=torch.float64))
    optimizer = newton(weight, 10, lr=0.1, rho=0.1)
    before, outer, total = optimizer._matrix(), torch.zeros(2, 2, dtype=torch.float64), torch.zeros(2).double()
    for _ in range(2):
        with optimizer.sampled_params(train=True):
            (0.5 * (weight**4).sum()).backward()
            noise, own = weight.detach() - torch.tensor([1.0, -1.0]), 2 * weight.detach() ** 3
        outer, total = outer + torch.outer(noise, own), total + own
    factor = 1.0
    if clip:
        factor = 0.01 / float(total.norm())
        weight.grad *= factor
    optimizer.step()
    hessian = 10 * factor * before @ outer
    hessian = 0.5 * (hessian + hessian.T) + PRIOR_PRECISION * torch.eye(2)
    torch.testing.assert_close(optimizer._matrix(), retract(before, hessian - before, 0.1))


def test_the_posterior_follows_the_order_of_the_model():
    model, (inputs, targets) = network(), data()
    optimizer = VariationalNewton(reversed(list(model.named_parameters())), lr=0.1, ess=32, rho=0.5)
    for _ in range(2):
        optimizer.step(lambda: loss(model, inputs, targets).backward())
    posterior = optimizer.posterior(model, likelihood="categorical", n=32)
    marginal = torch.linalg.inv(optimizer._matrix()).diagonal()
    size = model[2].bias.numel()
    np.testing.assert_allclose(posterior.variance["2.bias"], marginal[:size], rtol=1e-4)
    said = optimizer.diagnostics(loss=0.5)
    assert said.kl == pytest.approx(float(posterior.kl(posterior.prior)), rel=1e-4)
    assert said.elbo == pytest.approx(-16 - said.kl)


def test_bad_input():
    weight = torch.nn.Parameter(torch.zeros(2))
    small = VariationalNewton([weight], lr=0.1, ess=10)
    with pytest.raises(InvalidInput, match="at most 5000 weights"):
        small.add_param_group({"params": [torch.nn.Parameter(torch.zeros(5001))]})
    assert len(small.param_groups) == 1
    with pytest.raises(InvalidInput, match="rho"):
        VariationalNewton([weight], lr=0.1, ess=10, rho=0.0)
    optimizer = VariationalNewton([weight], lr=0.1, ess=10)
    optimizer.step(lambda: weight.sum().backward())
    with pytest.raises(InvalidInput, match="before the first step"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
    for name in ("ess", "rho"):
        with pytest.raises(InvalidInput, match=f"{name}: expected the same for all parameter groups"):
            small.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))], name: 0.5})


@pytest.mark.parametrize("frozen_first", [True, False])
def test_the_weights_that_share_a_precision_stay_the_same(frozen_first):
    model = network()
    optimizer = VariationalNewton(model.parameters(), lr=0.1, ess=10)
    model[0].requires_grad_(not frozen_first)
    optimizer.step(lambda: loss(model, *data()).backward())
    model[0].requires_grad_(frozen_first)
    with pytest.raises(InvalidInput, match="the same ones to train as at the first step"):
        optimizer.step(lambda: loss(model, *data()).backward())


class _Model(torch.nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight
