"""BayesBiNN on problems whose signs can be enumerated, and STE against torch's Adam on its latent weights."""

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn

from optim.reference import array
from posterity.errors import InvalidInput, Undefined
from posterity.noise import Key, normal
from posterity.optim import STE, BayesBiNN
from posterity.posterior import Ensemble, Signs

WORDS = np.array(list(itertools.product([-1.0, 1.0], repeat=4)))


def quadratic():
    """A total loss over four signs with interactions."""
    rng = np.random.default_rng(0)
    matrix, linear = rng.normal(size=(4, 4)), rng.normal(size=4)
    return torch.tensor(0.15 * (matrix + matrix.T)), torch.tensor(0.4 * linear)


def mean_field(values):
    """λ that minimises E_q[ℓ] − H(q) over independent signs, by enumerating all words."""

    def objective(natural):
        logs = (natural * WORDS - np.logaddexp(natural, -natural)).sum(1)
        return np.exp(logs) @ (values + logs)

    return minimize(objective, np.zeros(4), options={"gtol": 1e-9}).x


def test_enumerable_signs_reach_the_mean_field_optimum():
    matrix, linear = quadratic()

    def loss(w):  # of copies, in one tensor
        return ((w @ matrix) * w).sum(-1) / 2 + w @ linear

    exact = mean_field(loss(torch.tensor(WORDS)).numpy())
    copies = 1000
    weight = nn.Parameter(torch.ones(copies, 4, dtype=torch.float64))
    optimizer = BayesBiNN([weight], lr=0.05, ess=1.0, temperature=0.2, natural_init=0.1, beta=0.0)
    total = torch.zeros(4, dtype=torch.float64)
    for t in range(200):
        optimizer.param_groups[0]["lr"] = 0.3 / (1 + t / 10)
        with optimizer.sampled_params(train=True):
            loss(weight).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        total += weight.detach().mean(0) * (t >= 100)
    np.testing.assert_allclose(array(total / 100), np.tanh(exact), atol=0.03)  # the relaxation has a bias


def test_trajectory():
    """Line by line in NumPy, at a temperature where the relaxation matters."""
    weight = nn.Parameter(torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64))
    optimizer = BayesBiNN([weight], lr=0.05, ess=20, temperature=0.5, natural_init=0.4, beta=0.7, seed=3)
    natural, momentum = np.array([0.4, -0.4, 0.4]), np.zeros(3)
    np.testing.assert_allclose(array(weight), np.tanh(natural))
    for t in range(1, 15):
        z = normal(Key(3, t), 3, dtype=torch.float64)
        delta = 0.5 * torch.logit(torch.special.ndtr(z)).numpy()
        w = np.tanh((natural + delta) / 0.5)
        with optimizer.sampled_params(train=True):
            np.testing.assert_allclose(array(weight), w, rtol=1e-9)
            (weight**3 - weight).sum().backward()
        width = 0.5 * (1 - np.tanh(natural) ** 2 + 1e-10)
        slope = (1 - w**2 + 1e-10) / width
        expected = slope * (3 * w**2 - 1)
        rounding = 16 * np.finfo(float).eps / width  # where w is near ±1, a few ulp of 1 are left of 1 − w²
        assert (np.abs(array(weight.grad) - expected) <= 1e-8 * np.abs(expected) + rounding).all()
        optimizer.step()
        optimizer.zero_grad()
        momentum = 0.7 * momentum + 0.3 * (20 * expected + natural)
        natural = natural - 0.05 * momentum / (1 - 0.7**t)
        np.testing.assert_allclose(array(optimizer.state[weight]["natural"]), natural, rtol=1e-8)
        np.testing.assert_allclose(array(weight), np.tanh(natural), rtol=1e-8)


def test_at_the_published_temperature_samples_are_signs_and_the_slope_is_that_of_the_mean():
    weight = nn.Parameter(torch.tensor([0.3, -0.2]))
    optimizer = BayesBiNN([weight], lr=0.1, ess=10, natural_init=1.0)
    with optimizer.sampled_params(train=True):
        assert torch.equal(weight.abs(), torch.ones(2))
        weight.sum().backward()
    torch.testing.assert_close(weight.grad, torch.full((2,), np.cosh(1.0) ** 2, dtype=torch.float32))


def test_two_samples_are_averaged_and_old_gradients_forgotten():
    weight = nn.Parameter(torch.tensor([0.5], dtype=torch.float64))
    optimizer = BayesBiNN([weight], lr=0.1, ess=1.0, temperature=0.7, natural_init=0.5, beta=0.0, mc_samples=2)
    for _ in range(2):
        natural, slopes = torch.atanh(weight).item(), []

        def closure(natural=natural, slopes=slopes):
            optimizer.zero_grad()
            slopes.append((1 - weight.item() ** 2 + 1e-10) / (0.7 * (1 - np.tanh(natural) ** 2 + 1e-10)))
            weight.sum().backward()

        optimizer.step(closure)
        assert torch.atanh(weight).item() == pytest.approx(natural - 0.1 * (np.mean(slopes) + natural), rel=1e-7)


def test_the_posterior_of_signs_and_signs_as_a_prior():
    torch.manual_seed(0)
    model = nn.Linear(3, 1, bias=False)
    optimizer = BayesBiNN(model.named_parameters(), lr=0.1, ess=10, natural_init=0.5)
    optimizer.step(lambda: (model(torch.ones(1, 3)) ** 2).sum().backward())
    posterior = optimizer.posterior(model, likelihood="gaussian", n=10)
    assert isinstance(posterior.structure, Signs)
    torch.testing.assert_close(posterior.mean["weight"], model.weight.detach())
    with pytest.raises(Undefined, match="signs"):
        optimizer.diagnostics()
    with pytest.raises(InvalidInput, match="sampled_params"):
        optimizer.attach(model)
    again = BayesBiNN(model.named_parameters(), lr=0.1, ess=10, natural_init=0.5, beta=0.0, prior=posterior)
    model.weight.grad = torch.zeros_like(model.weight)
    start = 0.5 * model.weight.detach().sign()
    with pytest.warns(UserWarning, match="at the mean"):
        again.step()
    natural = posterior.structure.natural["weight"]
    torch.testing.assert_close(again.state[model.weight]["natural"], start - 0.1 * (start - natural))


def test_ste_is_adam_on_latent_weights():
    torch.manual_seed(0)
    weight, latent = nn.Parameter(torch.randn(40)), nn.Parameter(torch.zeros(40))
    target, matrix = torch.randn(20), torch.randn(20, 40)
    optimizer, adam = STE([weight], lr=0.03, latent_init=0.1), torch.optim.Adam([latent], lr=0.03)
    latent.data = 0.1 * weight.detach().clone()
    first = ((matrix @ weight - target) ** 2).mean().item()
    for _ in range(60):
        for p, point, who in ((weight, weight, optimizer), (latent, latent.detach().sign().requires_grad_(), adam)):
            who.zero_grad()
            ((matrix @ point - target) ** 2).mean().backward()
            p.grad = point.grad
            who.step()
        latent.data.clamp_(-1, 1)
        torch.testing.assert_close(optimizer.state[weight]["latent"], latent.detach())
        assert torch.equal(weight.detach(), latent.detach().sign())
    assert ((matrix @ weight - target) ** 2).mean().item() < 0.7 * first


def test_ste_hands_over_its_signs():
    model = nn.Linear(3, 1, bias=False)
    optimizer = STE(model.parameters(), lr=0.1)
    optimizer.step(lambda: model(torch.ones(1, 3)).sum().backward())
    posterior = optimizer.posterior(model, likelihood="gaussian", n=10)
    assert isinstance(posterior.structure, Ensemble)
    assert torch.equal(posterior.mean["weight"].abs(), torch.ones(1, 3))


def test_a_loaded_state_brings_the_means_that_follow_from_it():
    torch.manual_seed(0)
    weight, target = nn.Parameter(torch.randn(40)), torch.randn(40)
    optimizer = BayesBiNN([weight], lr=0.1, ess=10, natural_init=0.5)
    for _ in range(20):
        optimizer.step(lambda: ((weight - target) ** 2).sum().backward())
    resumed = nn.Parameter(weight.detach().clone())
    again = BayesBiNN([resumed], lr=0.1, ess=10, natural_init=0.5)  # which writes tanh(±0.5)
    assert not torch.equal(resumed, weight)
    again.load_state_dict(optimizer.state_dict())
    assert torch.equal(resumed, weight)


def test_bad_input():
    with pytest.raises(InvalidInput, match=r"bfloat16 or wider .*got torch\.float16"):
        BayesBiNN([torch.nn.Parameter(torch.zeros(2).half())], lr=0.1, ess=10)
    weight = nn.Parameter(torch.zeros(2))
    with pytest.raises(InvalidInput, match="temperature"):
        BayesBiNN([weight], lr=0.1, ess=10, temperature=0.0)
    with pytest.raises(InvalidInput, match="Signs"):
        BayesBiNN([("w", weight)], lr=0.1, ess=10, prior=Ensemble([{"w": torch.zeros(2)}]))
    with pytest.raises(InvalidInput, match="latent_init"):
        STE([weight], latent_init=2.0)
