"""Vadam is Adam at perturbed weights: Adam itself without noise, and its own published equations with it."""

import numpy as np
import pytest
import torch

from optim.reference import array, data, loss, network
from posterity.errors import InvalidInput
from posterity.optim import Vadam


def test_without_noise_and_decay_it_is_adam():
    one, other = network().double(), network().double()
    inputs, targets = data()
    vadam = Vadam(one.parameters(), lr=0.02, ess=1e30, weight_decay=0.0)
    adam = torch.optim.Adam(other.parameters(), lr=0.02)
    for _ in range(30):
        for model, optimizer in ((one, vadam), (other, adam)):
            optimizer.zero_grad()
            with torch.enable_grad() if optimizer is adam else vadam.sampled_params(train=True):
                loss(model, inputs.double(), targets).backward()
            optimizer.step()
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-12)


def test_trajectory():
    """Line by line in NumPy, with the samples that the optimizer drew."""
    weight = torch.nn.Parameter(torch.tensor([0.5, -1.0], dtype=torch.float64))
    lr, n, delta, s0, (beta1, beta2) = 0.1, 50, 0.02, 0.3, (0.8, 0.9)
    optimizer = Vadam([weight], lr=lr, ess=n, weight_decay=delta, hess_init=s0, betas=(beta1, beta2))
    mean, momentum, s, average = array(weight), np.zeros(2), np.full(2, s0), np.zeros(2)
    for t in range(1, 20):
        with optimizer.sampled_params(train=True):
            theta = array(weight)
            (weight**4).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        gradient = 4 * theta**3
        momentum = beta1 * momentum + (1 - beta1) * (gradient + delta * mean)
        s, average = (beta2 * value + (1 - beta2) * gradient**2 for value in (s, average))
        scale = np.sqrt(average / (1 - beta2**t)) + delta + 1e-8
        mean = mean - lr * momentum / (1 - beta1**t) / scale
        np.testing.assert_allclose(array(weight), mean, rtol=1e-9)
        np.testing.assert_allclose(array(optimizer.state[weight]["scale"]), s, rtol=1e-12)


def test_the_samples_have_the_width_of_the_posterior():
    weight = torch.nn.Parameter(torch.zeros(20000))
    optimizer = Vadam([weight], ess=100, hess_init=0.03, weight_decay=0.01)
    with optimizer.sampled_params():
        assert weight.std().item() == pytest.approx((100 * 0.04) ** -0.5, rel=0.02)


def test_bad_input():
    weight = torch.nn.Parameter(torch.zeros(2))
    with pytest.raises(InvalidInput, match="hess_init"):
        Vadam([weight], ess=10, hess_init=0.0)
    with pytest.raises(InvalidInput, match="beta parameter at index 1"):
        Vadam([weight], ess=10, betas=(0.9, 1.0))
    with pytest.raises(InvalidInput, match="betas: expected two numbers"):
        Vadam([weight], ess=10, betas=(0.9,))
