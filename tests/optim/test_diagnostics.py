"""Numbers about training, against straightforward computations."""

import math

import numpy as np
import pytest
import torch
from torch.distributions import Normal, kl_divergence

from optim.reference import data, loss, network
from posterity.optim import IVON
from posterity.optim._diagnostics import quantiles


def trained(steps=20, **options):
    model = network()
    optimizer = IVON(model.parameters(), **{"lr": 0.2, "ess": 50, "betas": (0.9, 0.95), **options})
    for k in range(steps):
        with optimizer.sampled_params(train=True):
            loss(model, *data(seed=k)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def test_widths_and_divergence():
    model, optimizer = trained(weight_decay=0.02)
    found = optimizer.diagnostics(loss=0.7)
    mean = torch.cat([p.detach().flatten() for p in model.parameters()]).double()
    hessian = torch.cat([optimizer.state[p]["hessian"].flatten() for p in model.parameters()]).double()
    sigma = (50 * (hessian + 0.02)).rsqrt()
    kl = kl_divergence(Normal(mean, sigma), Normal(torch.zeros_like(mean), (50 * 0.02) ** -0.5)).sum().item()
    assert found.kl == pytest.approx(kl, rel=1e-5)
    assert found.elbo == pytest.approx(-50 * 0.7 - kl, rel=1e-5)
    levels = torch.tensor([0.05, 0.5, 0.95]).double()
    assert found.sigma == pytest.approx(torch.quantile(sigma, levels).tolist(), rel=1e-4)
    assert optimizer.median_sigma() == found.sigma[1]
    assert found.signal_to_noise == pytest.approx(torch.quantile(mean.abs() / sigma, levels).tolist(), rel=1e-4)
    assert (found.parameters, found.steps, found.skipped) == (len(mean), 20, 0)


def test_learnt_share():
    assert trained(steps=20)[1].diagnostics().learnt == pytest.approx(1 - 0.95**20, rel=1e-4)
    model = network()
    assert IVON(model.parameters(), lr=0.1, ess=10).diagnostics().learnt == 0


def test_clip_rate():
    assert trained()[1].diagnostics().clip_rate == 0
    assert trained(clip_radius=1e-5)[1].diagnostics().clip_rate > 0.9
    assert 0 < trained(clip_radius=0.05)[1].diagnostics().clip_rate < 1


def test_a_flat_prior_has_an_infinite_divergence():
    assert trained(weight_decay=0.0)[1].diagnostics().kl == math.inf


def test_a_hessian_of_known_spread():
    """Constant gradients g: ĥ/(h+δ) = λ σ ε g is Gaussian noise of variance λ g²/(h + δ), so the spread is known."""
    weight = torch.nn.Parameter(torch.zeros(4000))
    optimizer = IVON([weight], lr=0.0, ess=100, hess_init=2.0, weight_decay=0.0, betas=(0.9, 1 - 1e-7))
    for _ in range(100):
        with optimizer.sampled_params(train=True):
            weight.grad = torch.full_like(weight, 0.5)
        optimizer.step()
        optimizer.zero_grad()
    spread = 1 + 100 * 0.5**2 / 2.0  # (ĥ − h)²/h² with E ĥ = 0
    assert optimizer.diagnostics().hessian_bias == pytest.approx(0.5 * 1e-7 * spread, rel=0.02)


def test_quantiles_whatever_the_default_type_is():
    values = torch.randn(1000)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        found = quantiles([values[:300], values[300:]])
    finally:
        torch.set_default_dtype(before)
    np.testing.assert_allclose(found, np.quantile(values.numpy(), [0.05, 0.5, 0.95]), rtol=1e-6)
