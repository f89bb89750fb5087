"""The learnt noise of a regression against the values that can be computed."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from learning.problems import line
from networks import perceptron
from posterity.learning import fit
from posterity.learning.folds import out_of_fold
from posterity.learning.noise_precision import NoisePrecision
from posterity.likelihoods import GaussianLikelihood


def test_equal_steps_give_the_plain_average():
    errors = np.random.default_rng(0).uniform(0, 10, 5)
    noise = NoisePrecision(memory=100)
    for error in errors:
        noise.update(error, 4)
    assert noise.value == pytest.approx(20 / errors.sum())


def test_old_steps_are_forgotten():
    noise = NoisePrecision(memory=5)
    for error in [100.0] * 10 + [1.0] * 5:
        noise.update(error, 4)
    assert noise.value == 4


def test_no_residual_is_not_infinite_precision():
    assert np.isfinite(NoisePrecision(memory=5).update(0.0, 10))


def test_a_point_finds_the_maximum_likelihood_value():
    x, y = line(2000, noise=0.5)
    run = fit(nn.Linear(3, 1), (x, y), method="sgd", lr=0.02, epochs=20, batch_size=100, prior=0.0)
    design = np.column_stack([x.numpy(), np.ones(len(x))])
    _, squares, *_ = np.linalg.lstsq(design, y.numpy(), rcond=None)
    assert run.posterior.likelihood.precision == pytest.approx(len(x) / squares.item(), rel=0.01)
    assert run.posterior.likelihood.precision == pytest.approx(4.0, rel=0.1)


@pytest.mark.parametrize("method", ["ivon", "bayes_by_backprop"])
def test_variational_noise_maximises_the_evidence_bound(method):
    """In linear regression the fixed point of 1/β = E_q[(y − f)²] can be iterated exactly.

    q is the mean-field optimum at noise β: the exact posterior mean, and the diagonal of its precision.
    """
    n, d = 40, 10
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, d, generator=generator)
    y = x @ torch.randn(d, 1, generator=generator) + 0.5 * torch.randn(n, 1, generator=generator)
    X, Y, beta = x.double().numpy(), y.double().numpy(), 1.0
    for _ in range(200):
        precision = beta * X.T @ X + np.eye(d)
        mean = np.linalg.solve(precision, beta * X.T @ Y)
        expected = ((Y - X @ mean) ** 2).mean() + (X**2 / np.diag(precision)).sum(1).mean()
        beta = 1 / expected
    maximum_likelihood = 1 / ((Y - X @ np.linalg.lstsq(X, Y, rcond=None)[0]) ** 2).mean()
    options = {"hess_init": 3.0, "beta2": 0.99} if method == "ivon" else {"lr": 0.03}
    run = fit(nn.Linear(d, 1, bias=False), (x, y), method=method, epochs=300, batch_size=8, **options)
    learnt = run.posterior.likelihood.precision
    assert learnt == pytest.approx(beta, rel=0.1)
    assert abs(learnt - maximum_likelihood) > 0.15 * maximum_likelihood


def test_targets_of_any_scale_start_well():
    x, y = line(400, noise=0.5)
    run = fit(nn.Linear(3, 1), (x, 1e3 * y), method="adamw", lr=50.0, prior=0.0, epochs=60)
    assert run.posterior.likelihood.precision == pytest.approx(4e-6, rel=0.2)


@pytest.mark.parametrize("method", ["variational", "adamw"])
def test_a_cross_validated_regression_takes_its_noise_from_the_folds(method):
    x, y = line(40, noise=0.5)
    torch.manual_seed(0)
    network = perceptron(3, 32, 1)
    copies = [copy.deepcopy(network) for _ in range(5)]
    found = out_of_fold(copies, x, y, GaussianLikelihood(1.0), seed=3, progress=False)
    run = fit(network, (x, y), method=method, seed=3, progress=False)
    # AdamW's steps do not depend on the scale of the loss, but for its epsilon.
    assert run.posterior.likelihood.precision == pytest.approx(found.noise_precision(y), rel=1e-3)
    assert found.noise_precision(y) == pytest.approx(1 / (found.outputs - y).square().mean().item(), rel=1e-6)
