"""Precisions at the defaults of `fit` beside exact mean-field inference, and posteriors as priors."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import posterity as po
from posterity.learning.learners._base import as_prior

NODES, WEIGHTS = map(torch.tensor, np.polynomial.hermite_e.hermegauss(40))
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def logistic(n):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 3, generator=generator)
    y = torch.bernoulli(torch.sigmoid(x @ torch.tensor([1.0, -1.0, 0.5])), generator=generator)
    return x, y.unsqueeze(1)


def exact(x, y):
    """P_j = 1 + Σ_i x_ij² E_q[σ′(x_iᵀθ)] with ∇_m E_q[loss] + m = 0, by fixed-point iteration."""
    x, y = x.double(), y[:, 0].double()
    mean, precision = torch.zeros(3, dtype=x.dtype), 1 + x.square().sum(0)
    for _ in range(200):
        f = (x @ mean)[:, None] + (x.square() @ (1 / precision)).sqrt()[:, None] * NODES
        p = torch.sigmoid(f)
        slope = (p * (1 - p)) @ WEIGHTS
        hessian = x.T @ (x * slope[:, None]) + torch.eye(3, dtype=x.dtype)
        mean = mean - torch.linalg.solve(hessian, x.T @ (p @ WEIGHTS - y) + mean)
        precision = 1 + (x.square() * slope[:, None]).sum(0)
    return precision


@pytest.mark.parametrize("options", [{"method": "variational"}, {"method": "ivon", "ess": "auto", "hess_init": "auto"}])
def test_precisions_are_within_a_factor_of_two_of_the_exact_mean_field(options):
    x, y = logistic(100)
    torch.manual_seed(0)
    model = nn.Linear(3, 1, bias=False)
    posterior = po.fit(model, (x, y), likelihood="bernoulli", prior=1.0, epochs=300, **options).posterior
    precision = posterior.structure.precision["weight"][0].double() * posterior.temperature
    # Price's products have a relative variance of N / (B · steps), here with half of the steps at λ = N: 0.08 squared.
    assert ((precision / exact(x, y)).log2().abs() < 1).all()


def test_a_cold_posterior_is_a_prior_at_temperature_one():
    x, y = logistic(20)
    model = nn.Linear(3, 1, bias=False)
    posterior = po.fit(model, (x, y), method="ivon", likelihood="bernoulli", ess=200.0, epochs=2).posterior
    assert math.isclose(posterior.temperature, 0.1)
    wanted = posterior.structure.precision["weight"] * 0.1
    torch.testing.assert_close(as_prior(model, posterior).precision["weight"], wanted)


def test_ivon_takes_its_betas_together_or_one_by_one():
    x, y = logistic(20)
    posteriors = []
    for options in ({"betas": (0.8, 0.5)}, {"beta1": 0.8, "beta2": 0.5}):
        torch.manual_seed(0)
        model = nn.Linear(3, 1, bias=False)
        posteriors.append(po.fit(model, (x, y), method="ivon", likelihood="bernoulli", epochs=2, **options).posterior)
    assert torch.equal(*(posterior.structure.precision["weight"] for posterior in posteriors))
