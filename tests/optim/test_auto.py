"""IVON with ess="auto" and hess_init="auto": what they mean, and that explicit numbers are what they were."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from networks import perceptron
from posterity.errors import InvalidInput
from posterity.optim import IVON
from posterity.optim._auto import BUDGET
from posterity.posterior import Diagonal


def problem(hidden=20):
    torch.manual_seed(0)
    x = torch.randn(300, 5)
    y = (x[:, 0] + torch.randn(300) > 0).long()
    return x, y, perceptron(5, hidden, 2)


def train(model, optimizer, x, y, steps, start=0):
    for step in range(start, start + steps):
        rows = torch.randint(0, len(x), (30,), generator=torch.Generator().manual_seed(step))
        with optimizer.sampled_params(train=True):
            F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
        optimizer.zero_grad()


def test_numbers_in_place_of_auto_are_what_they_were():
    """n alone changes nothing: the trajectory is that of IVON without it, to the bit."""
    x, y, model = problem()
    other = copy.deepcopy(model)
    train(model, IVON(model.parameters(), lr=0.1, ess=300, hess_init=0.5, fused=False), x, y, 30)
    train(other, IVON(other.parameters(), lr=0.1, ess=300, hess_init=0.5, n=300, fused=False), x, y, 30)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True))


def test_lambda_holds_the_price_and_is_never_below_n():
    x, y, model = problem()
    optimizer = IVON(model.parameters(), lr=0.2, ess="auto", hess_init="auto", n=300)
    weights = sum(p.numel() for p in model.parameters())
    assert optimizer.param_groups[0]["ess"] == pytest.approx(weights / (2 * BUDGET))
    train(model, optimizer, x, y, 200)
    price = float(optimizer._held.price.paid) / float(optimizer._held.price.per_ess) / 2  # P̂/2, over the window
    assert optimizer.param_groups[0]["ess"] >= 300
    assert price / optimizer.param_groups[0]["ess"] < 2 * BUDGET
    small = nn.Linear(1, 1, bias=False)
    assert IVON(small.parameters(), lr=0.1, ess="auto", n=300).param_groups[0]["ess"] == 300


@pytest.mark.parametrize("samples", [1, 3])
def test_the_price_of_several_samples_is_their_average(samples):
    weight = nn.Parameter(torch.linspace(-1, 1, 8))
    optimizer = IVON([weight], lr=0.1, ess="auto", n=20, mc_samples=samples)
    mean, prices = weight.detach().clone(), []

    def closure():
        optimizer.zero_grad()
        weight.square().sum().backward()
        prices.append(0.5 * torch.dot(weight.detach() - mean, weight.grad).item())

    optimizer.step(closure)
    assert len(prices) == samples
    assert optimizer._held.price.last.item() == pytest.approx(sum(prices) / samples, rel=1e-5)


def test_the_start_of_the_hessian_is_unlearnt():
    """On a quadratic of curvature 0.2, from 300/N = 6 on; the default β₂ would keep 99 % of that."""
    weight = nn.Parameter(torch.zeros(2000, dtype=torch.float64))
    optimizer = IVON([weight], lr=0.1, ess=50, hess_init="auto", weight_decay=0.02)
    for _ in range(500):
        with optimizer.sampled_params(train=True):
            (0.1 * weight.square()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    # Left of the start: at most 10/503 of 6, since 1 − β₂ is bounded by 0.1 in the first steps.
    assert 0.15 < optimizer.state[weight]["hessian"].mean().item() < 0.2 + 0.12


def test_a_prior_is_held_at_temperature_one():
    x, y, model = problem()
    named = list(model.named_parameters())
    prior = Diagonal({n: torch.zeros_like(p) for n, p in named}, {n: torch.full_like(p, 3.0) for n, p in named})
    optimizer = IVON(named, lr=0.2, ess="auto", n=300, prior=prior, betas=(0.9, 0.9))
    train(model, optimizer, x, y, 40)
    posterior = optimizer.posterior(model, likelihood="categorical", n=300)
    assert posterior.temperature < 1
    hessian = optimizer.state[model[0].weight]["hessian"]
    wanted = posterior.ess * (hessian + 3.0 / 300)
    torch.testing.assert_close(posterior.structure.precision["0.weight"], wanted)
    torch.testing.assert_close(
        posterior.prior.precision["0.weight"] * posterior.temperature, prior.precision["0.weight"]
    )


def test_a_resumed_run_goes_on_to_the_bit():
    x, y, model = problem()
    make = lambda m: IVON(m.parameters(), lr=0.2, ess="auto", hess_init="auto", n=300)  # noqa: E731
    other, optimizer = copy.deepcopy(model), make(model)
    train(model, optimizer, x, y, 60)
    first = make(other)
    train(other, first, x, y, 33)
    last = copy.deepcopy(other)
    second = make(last)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    train(last, second, x, y, 27, start=33)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), last.parameters(), strict=True))
    assert second.param_groups[0]["ess"] == optimizer.param_groups[0]["ess"]
    copied = copy.deepcopy(second)
    assert copied._held.state() == second._held.state()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ess": "auto"}, "the number of training examples"),
        ({"ess": "some"}, "ess: expected a number, or 'auto'"),
        ({"ess": 10, "hess_init": "some"}, "hess_init: expected a number, or 'auto'"),
        ({"ess": "auto", "n": -1}, "n: expected a positive finite number"),
    ],
)
def test_bad_input_is_named(options, message):
    with pytest.raises(InvalidInput, match=message):
        IVON([nn.Parameter(torch.ones(2))], lr=0.1, **options)


def test_the_state_of_a_given_ess_is_refused():
    _, _, model = problem()
    with pytest.raises(InvalidInput, match='one of IVON with ess="auto"'):
        IVON(model.parameters(), lr=0.1, ess="auto", n=10).load_state_dict(
            IVON(model.parameters(), lr=0.1, ess=10).state_dict()
        )
