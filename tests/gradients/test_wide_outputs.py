"""Expectations of the logistic function under narrow and wide Gaussians, beside adaptive quadrature of scipy's."""

import itertools

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats
from sklearn.gaussian_process.kernels import ConstantKernel

from posterity.families import DiagonalGaussian
from posterity.gradients import LinearLoss, Quadrature
from posterity.gradients.quadrature import logistic_moments
from posterity.likelihoods import BernoulliLikelihood
from posterity.models import BayesianLogisticRegression, GaussianProcess


def expected(function, m, s):
    """E[function(f)] for f ~ N(m, s²), piece by piece."""
    edges = sorted({m - 12.0 * s, *np.clip([-30.0, -5.0, 0.0, 5.0, 30.0], m - 12.0 * s, m + 12.0 * s), m + 12.0 * s})
    pieces = (
        integrate.quad(lambda f: function(f) * stats.norm.pdf(f, m, s), a, b, epsabs=0.0, epsrel=1e-12)[0]
        for a, b in itertools.pairwise(edges)
    )
    return sum(pieces)


def softplus(f):
    return np.logaddexp(0.0, f)


def slope(f):
    return special.expit(f) * special.expit(-f)


@pytest.mark.parametrize("s", [0.3, 0.99, 1.01, 4.0, 30.0, 1000.0])
@pytest.mark.parametrize("where", [-3.0, 0.0, 0.7])
def test_moments_of_the_logistic_function(where, s):
    m = where * s
    ours = logistic_moments(torch.tensor([m], dtype=torch.float64), torch.tensor([s**2], dtype=torch.float64), nodes=40)
    wanted = [expected(function, m, s) for function in (softplus, special.expit, slope)]
    np.testing.assert_allclose([moment.item() for moment in ours], wanted, rtol=1e-9)


def test_small_losses_keep_their_digits():
    m, v = torch.tensor([25.0], dtype=torch.float64), torch.tensor([0.01], dtype=torch.float64)
    softplus, _, _ = logistic_moments(m, v, nodes=20)
    exact = expected(lambda f: np.log1p(np.exp(-f)), 25.0, 0.1)
    assert (softplus - m).item() == pytest.approx(exact, abs=1e-14)


def test_chunks_change_nothing(monkeypatch):
    m, v = torch.linspace(-9.0, 9.0, 20, dtype=torch.float64), torch.full((20,), 9.0, dtype=torch.float64)
    whole = logistic_moments(m, v, nodes=20)
    monkeypatch.setattr("posterity.gradients.quadrature._CHUNK", 7)
    torch.testing.assert_close(logistic_moments(m, v, nodes=20), whole)


def test_narrow_and_wide_outputs_side_by_side():
    rows = torch.tensor([[0.1, 0.0], [10.0, -3.0], [0.0, 100.0]], dtype=torch.float64)
    loss = LinearLoss(inputs=rows, targets=torch.tensor([1.0, 0.0, 1.0]), likelihood="bernoulli", n=6)
    q = DiagonalGaussian(torch.tensor([0.5, 0.2], dtype=torch.float64), torch.tensor([2.0, 4.0], dtype=torch.float64))
    m, s = (rows @ q.mean).numpy(), (rows**2 @ q.variance).sqrt().numpy()
    y = np.array([1.0, 0.0, 1.0])
    means, slopes, bends = (
        np.array([expected(function, *place) for place in zip(m, s, strict=True)])
        for function in (softplus, special.expit, slope)
    )
    gradient, curvature = Quadrature().derivatives(q, loss, diagonal=True)
    assert Quadrature().expectation(q, loss).item() == pytest.approx(2 * (means - y * m).sum(), rel=1e-9)
    np.testing.assert_allclose(gradient.numpy(), 2 * (slopes - y) @ rows.numpy(), rtol=1e-9)
    np.testing.assert_allclose(curvature.numpy(), 2 * bends @ rows.numpy() ** 2, rtol=1e-9)


def test_likelihoods_made_from_that_of_classes_have_their_own_loss():
    class Doubtful(BernoulliLikelihood):
        """σ(f/2) in place of σ(f)."""

        def loss(self, f, y):
            return super().loss(0.5 * f, y)

    y = torch.tensor([1.0])
    loss = LinearLoss(inputs=torch.ones(1, 1, dtype=torch.float64), targets=y, likelihood=Doubtful())
    q = DiagonalGaussian(torch.tensor([0.8], dtype=torch.float64), torch.tensor([2.0], dtype=torch.float64))
    exact = expected(lambda f: softplus(-0.5 * f), 0.8, 0.5**0.5)
    assert Quadrature(40).expectation(q, loss).item() == pytest.approx(exact, rel=1e-9)


def test_classes_far_from_the_data():
    """Where the output is wide, probabilities are those of scipy's."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    model = BayesianLogisticRegression(prior_precision=1e-2).fit(X, X[:, 0] + rng.normal(size=60) > 0)
    mean, variance = (part.numpy() for part in model._outputs(100.0 * X[:8]))
    assert variance.min() > 50.0
    probabilities, std = model.predict_proba(100.0 * X[:8], return_std=True)
    places = list(zip(mean, np.sqrt(variance), strict=True))
    exact = np.array([expected(special.expit, *place) for place in places])
    squares = np.array([expected(lambda f: special.expit(f) ** 2, *place) for place in places])
    np.testing.assert_allclose(probabilities[:, 1], exact, rtol=1e-8)
    np.testing.assert_allclose(std, np.sqrt(squares - exact**2), rtol=1e-6)
    process = GaussianProcess(ConstantKernel(400.0), likelihood="bernoulli", optimize=False)
    process.fit(X[:1].repeat(3, 0), [0, 1, 1])
    (mean,), (variance,) = process._outputs(X[:1])
    chance = process.predict_proba(X[:1])[0, 1]
    assert chance == pytest.approx(expected(special.expit, float(mean), float(variance) ** 0.5), rel=1e-9)
