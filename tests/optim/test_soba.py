"""SOBA is the improved rule, reaches the mean-field optimum, and needs its correction to be what it is."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from optim.oracles import COPIES, PRIOR_PRECISION, averages, logistic_data
from posterity.families import DiagonalGaussian
from posterity.gradients import MonteCarlo, Stein
from posterity.noise import Key, normal
from posterity.optim import SOBA
from posterity.rule import BayesianLearningRule

N = 30


def losses():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(N, 3, generator=generator, dtype=torch.float64)
    labels = (torch.rand(N, generator=generator) < 0.5).double()
    return lambda theta: F.binary_cross_entropy_with_logits(inputs @ theta, labels, reduction="sum")


def test_it_takes_the_steps_of_the_rule(monkeypatch):
    """The same draws through `BayesianLearningRule`, retracted, with Price's theorem from gradients."""
    loss, rho, hess_init, steps = losses(), 0.3, 0.4, 20
    weight = torch.nn.Parameter(torch.tensor([0.5, -1.0, 0.2], dtype=torch.float64))
    optimizer = SOBA([weight], lr=rho, rho=rho, ess=N, hess_init=hess_init, weight_decay=PRIOR_PRECISION / N, seed=3)
    prior = DiagonalGaussian(torch.zeros(3).double(), torch.full((3,), PRIOR_PRECISION).double())
    q = DiagonalGaussian(weight.detach().clone(), torch.full((3,), N * hess_init + PRIOR_PRECISION).double())
    draws = iter([normal(Key(3, step), 3, dtype=torch.float64) for step in range(1, steps + 1)])
    monkeypatch.setattr(
        DiagonalGaussian, "sample", lambda q, n, generator=None: (q.mean + next(draws) / q.precision.sqrt())[None]
    )
    rule = BayesianLearningRule(MonteCarlo(1, curvature=Stein()), lr=rho, prior=prior, retracted=True)
    for _ in range(steps):
        with optimizer.sampled_params(train=True):
            (loss(weight) / N).backward()
        optimizer.step()
        optimizer.zero_grad()
        q = rule.step(q, loss)
        torch.testing.assert_close(weight.detach(), q.mean, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(optimizer.state[weight]["precision"], q.precision, rtol=1e-10, atol=0)


def test_logistic_regression_reaches_the_mean_field_optimum():
    inputs, labels, mean, precision = logistic_data()
    theta = torch.nn.Parameter(torch.zeros(COPIES, 2, dtype=torch.float64))
    optimizer = SOBA([theta], lr=0.1, ess=len(labels), weight_decay=PRIOR_PRECISION / len(labels), hess_init=0.2)

    def step(t):
        optimizer.param_groups[0]["rho"] = 2 / (t + 20)
        optimizer.param_groups[0]["lr"] = 0.5 / (1 + t / 50)
        with optimizer.sampled_params(train=True):
            F.binary_cross_entropy_with_logits(theta @ inputs.T, labels.expand(COPIES, -1), reduction="none").mean(
                -1
            ).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        return theta.detach().clone(), optimizer.state[theta]["precision"].clone()

    found, width = averages(step, 800)
    torch.testing.assert_close(found, mean, rtol=0, atol=5e-3)
    torch.testing.assert_close(width, precision, rtol=1.5e-2, atol=0)


@pytest.mark.filterwarnings("ignore:.*written to while a sample was in place")
@pytest.mark.parametrize("rho", [0.4, 0.6, 1.0])
def test_the_correction_without_s_goes_negative_beyond_one_half(rho):
    """½ρ²h²/s, as slides print it, has the minimum s(½ − ρ) at h = −s/ρ; ½ρ²(h − s)²/s never falls below s/2."""
    s, h = 2.0, -2.0 / rho
    printed = (1 - rho) * s + rho * h + 0.5 * rho**2 * h**2 / s
    assert printed == pytest.approx(s * (0.5 - rho))
    assert (printed < 0) == (rho > 0.5)
    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = SOBA([weight], lr=0.0, rho=rho, ess=1.0, hess_init=s, weight_decay=0.0)
    with optimizer.sampled_params(train=True):
        with torch.no_grad():
            weight.fill_(1.0)  # θ − m = 1, so that h = s · 1 · gradient
        weight.grad = torch.tensor([h / s], dtype=torch.float64)
    optimizer.step()
    x = rho * (h - s) / s
    assert optimizer.state[weight]["precision"].item() == pytest.approx(s * (1 + x + x**2 / 2))
    assert optimizer.state[weight]["precision"].item() >= s / 2


def test_it_hands_over_its_posterior():
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = SOBA(model.parameters(), lr=0.1, ess=50, rho=0.2)
    for _ in range(10):
        with optimizer.sampled_params(train=True):
            (model(torch.randn(8, 2)) ** 2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    posterior = optimizer.posterior(model, likelihood="gaussian", n=50)
    for name, p in model.named_parameters():
        np.testing.assert_allclose(posterior.variance[name], 1 / optimizer.state[p]["precision"], rtol=1e-6)
    assert optimizer.diagnostics().learnt == pytest.approx(1 - 0.8**10)
