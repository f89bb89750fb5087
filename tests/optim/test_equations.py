"""IVON takes exactly the steps of its equations."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from optim.reference import Reference, array, data, loss, network
from posterity.noise import Key, normal
from posterity.optim import IVON

pytestmark = pytest.mark.usefixtures("arithmetic")

OPTIONS = [
    {},
    {"hess_init": 0.3, "betas": (0.8, 0.9)},
    {"weight_decay": 0.0, "betas": (0.0, 0.95)},
    {"weight_decay": 0.1, "clip_radius": 0.05},
    {"debias": False, "betas": (0.9, 0.99)},
    {"rescale_lr": False, "hess_init": 0.1, "betas": (0.9, 0.99)},
    {"rescale_lr": np.False_, "debias": np.False_, "hess_init": np.float64(0.1), "weight_decay": np.int64(0)},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_trajectory(options):
    model, (inputs, targets) = network().double(), data()
    inputs = inputs.double()
    optimizer = IVON(model.parameters(), lr=0.2, ess=50, **options)
    references = [Reference(array(p), lr=0.2, ess=50, **options) for p in model.parameters()]
    for _ in range(25):
        with optimizer.sampled_params(train=True):
            samples = [array(p) for p in model.parameters()]
            loss(model, inputs, targets).backward()
        optimizer.step()
        for p, reference, sample in zip(model.parameters(), references, samples, strict=True):
            gradient = array(p.grad)
            reference.step(gradient, reference.estimate(sample, gradient))
            np.testing.assert_allclose(array(p), reference.mean, rtol=1e-12, atol=1e-14)
            np.testing.assert_allclose(array(optimizer.state[p]["hessian"]), reference.hessian, rtol=1e-12)
            np.testing.assert_allclose(array(optimizer.state[p]["momentum"]), reference.momentum, atol=1e-14)
        optimizer.zero_grad()


def test_samples_are_the_counter_noise_over_the_root_of_the_precision():
    weight = torch.nn.Parameter(torch.randn(3, 700, dtype=torch.float64))
    other = torch.nn.Parameter(torch.randn(5, dtype=torch.float64))
    optimizer = IVON([other, weight], lr=0.1, ess=20, hess_init=0.5, weight_decay=0.25, seed=7)
    mean = weight.detach().clone()
    for draw in (1, 2):
        with optimizer.sampled_params(train=True):
            noise = normal(Key(seed=7, step=draw, parameter=1), weight.numel(), dtype=torch.float64).view(3, 700)
            torch.testing.assert_close(weight.detach(), mean + noise / (20 * 0.75) ** 0.5)


def test_gradsq_estimates_the_hessian_by_batch_size_times_squared_gradient():
    weight = torch.nn.Parameter(torch.tensor([0.5, -1.0], dtype=torch.float64))
    options = {"betas": (0.9, 0.9), "hess_init": 0.4}
    optimizer = IVON([weight], lr=0.1, ess=100, hess_approx="gradsq", batch_size=8, **options)
    reference = Reference(array(weight), lr=0.1, ess=100, **options)
    for step in range(5):
        with optimizer.sampled_params(train=True):
            (weight**2 * (step + 1)).sum().backward()
        optimizer.step()
        gradient = array(weight.grad)
        reference.step(gradient, 8 * gradient**2)
        optimizer.zero_grad()
        np.testing.assert_allclose(array(weight), reference.mean, rtol=1e-12)
        np.testing.assert_allclose(array(optimizer.state[weight]["hessian"]), reference.hessian, rtol=1e-12)


def test_gradsq_is_the_fisher_of_a_logistic_regression():
    """At the maximum of the likelihood, B times the squared mean gradient averages to the empirical Fisher."""
    torch.manual_seed(0)
    inputs = torch.randn(4000, dtype=torch.float64)
    labels = (torch.rand(4000) < torch.sigmoid(inputs)).double()
    weight = torch.nn.Parameter(torch.ones(300, dtype=torch.float64))  # copies: each sees its own batches
    options = {"lr": 0.0, "ess": 1e9, "weight_decay": 0.0, "betas": (0.9, 0.99), "hess_init": 0.2}
    optimizer = IVON([weight], hess_approx="gradsq", batch_size=20, **options)
    for _ in range(400):
        picks = torch.randint(4000, (300, 20))
        with optimizer.sampled_params(train=True):
            logits = inputs[picks] * weight[:, None]
            losses = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels[picks], reduction="none")
            losses.mean(1).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    fisher = (inputs**2 * (torch.sigmoid(inputs) - labels) ** 2).mean().item()
    assert optimizer.state[weight]["hessian"].mean().item() == pytest.approx(fisher, rel=0.05)


@pytest.mark.filterwarnings("ignore:.* it is not decoupled")  # strong priors are among the cases
@pytest.mark.filterwarnings("ignore:.*written to while a sample was in place")
@settings(max_examples=200, deadline=None)
@given(
    hessian=st.floats(1e-6, 1e4),
    delta=st.floats(0, 10),
    gradient=st.floats(-1e4, 1e4, width=32),
    noise=st.floats(-8, 8),
    beta2=st.floats(0, 0.999999),
    ess=st.floats(1, 1e8),
)
def test_the_precision_is_at_least_halved_never_lost(hessian, delta, gradient, noise, beta2, ess):
    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = IVON([weight], lr=0.0, ess=ess, hess_init=hessian, weight_decay=delta, betas=(0.9, beta2))
    with optimizer.sampled_params(train=True):
        with torch.no_grad():
            weight.fill_(noise / (ess * (hessian + delta)) ** 0.5)
        weight.grad = torch.full((1,), gradient, dtype=torch.float64)
    optimizer.step()
    after = optimizer.state[weight]["hessian"].item() + delta
    assert np.isfinite(after)
    assert after >= 0.5 * (hessian + delta) * (1 - 1e-9)
