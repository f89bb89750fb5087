"""Closed forms against those of torch and scipy, where they have them, and against known reductions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from families.cases import CASES, Draw
from posterity.errors import Undefined
from posterity.families import Dirichlet, NormalGamma, NormalWishart, Poisson, Product, SignBernoulli, Wishart

IN_TORCH = sorted(set(CASES) - {"SignBernoulli", "NormalGamma", "NormalWishart", "Product"})
TIGHT = {"rtol": 1e-12, "atol": 1e-12}


@pytest.mark.parametrize("name", sorted(set(IN_TORCH) - {"Poisson"}))
def test_entropy_equals_torch(name):
    q = CASES[name].make(Draw(0), 3)
    torch.testing.assert_close(q.entropy(), q.to_torch().entropy(), **TIGHT)


@pytest.mark.parametrize("name", sorted(set(IN_TORCH) - {"Wishart"}))
def test_kl_equals_torch(name):
    q, p = CASES[name].make(Draw(0), 3), CASES[name].make(Draw(1), 3)
    torch.testing.assert_close(q.kl(p), torch.distributions.kl_divergence(q.to_torch(), p.to_torch()), **TIGHT)


@pytest.mark.parametrize("name", IN_TORCH)
def test_torch_has_the_same_moments(name):
    q = CASES[name].make(Draw(2), 3)
    torch.testing.assert_close(q.mean, q.to_torch().mean, **TIGHT)
    torch.testing.assert_close(q.variance, q.to_torch().variance, **TIGHT)


def test_no_torch_member_is_said_so():
    with pytest.raises(Undefined, match="SignBernoulli"):
        SignBernoulli([0.0]).to_torch()


@pytest.mark.parametrize("rate", [1e-3, 0.7, 30.0, 4e3, 1e6])
def test_poisson_base_measure_at_every_rate(rate):
    """E[log h] and its gradient are sums over counts: scipy's probabilities, over a wider range."""
    q = Poisson(rate)
    wide = 14.0 * np.sqrt(rate) + 60.0
    counts = np.arange(max(0.0, np.floor(rate - wide)), rate + wide)
    entropy = -(stats.poisson.pmf(counts, rate) * stats.poisson.logpmf(counts, rate)).sum()
    growth = -(stats.poisson.pmf(counts, rate) * np.log1p(counts)).sum()
    assert q.entropy().item() == pytest.approx(entropy, rel=1e-8, abs=1e-12)
    assert q.base_measure_gradient()[0].item() == pytest.approx(growth, rel=1e-8, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("rate", [9999.0, 1e4, 1e12])
def test_poisson_at_huge_rates_is_a_gaussian_with_corrections(rate, dtype):
    """Edgeworth: H = ½log 2πer − 1/12r + …; E[log(θ + 1)] = log r + 1/2r + …, both to more digits than shown."""
    q = Poisson(torch.tensor(rate, dtype=dtype))
    entropy = stats.norm(scale=np.sqrt(rate)).entropy() - 1.0 / (12.0 * rate)
    digits = 1e-9 if dtype is torch.float64 else 1e-2 if rate < 1e4 else 1e-6
    assert q.entropy().item() == pytest.approx(entropy, rel=digits)
    assert q.base_measure_gradient()[0].item() == pytest.approx(-np.log(rate) - 0.5 / rate, rel=max(1e-9, digits / 10))


def test_poisson_joins_its_series_smoothly():
    """On both sides of the rate where the sum over counts gives way to the series, values and slopes agree."""
    rate = torch.tensor([1e4 * (1.0 - 1e-12), 1e4], dtype=torch.float64, requires_grad=True)
    q = Poisson(rate)
    for values in (q.entropy(), q.expected_log_base_measure(), q.base_measure_gradient()[0]):
        below, above = values
        assert below.item() == pytest.approx(above.item(), rel=1e-11)
        slopes = torch.autograd.grad(values.sum(), rate, retain_graph=True)[0]
        assert slopes[0].item() == pytest.approx(slopes[1].item(), rel=1e-6)


def test_wishart_equals_scipy_in_three_dimensions():
    draw = Draw(3)
    q = Wishart(5.5, draw.definite(3))
    law = stats.wishart(5.5, q.scale.numpy())
    assert q.entropy().item() == pytest.approx(law.entropy(), rel=1e-12)
    torch.testing.assert_close(q.variance, torch.as_tensor(law.var()), **TIGHT)
    theta = q.sample(5, draw.generator)
    outside = [law.logpdf(matrix) for matrix in theta.numpy()]
    torch.testing.assert_close(q.log_prob(theta), torch.tensor(outside, dtype=torch.float64), rtol=1e-10, atol=1e-10)


def test_normal_wishart_of_one_dimension_is_normal_gamma():
    draw = Draw(4)
    pairs = []
    for _ in range(2):
        m, k, n, w = draw.normal(5), draw.positive(5), 1.0 + draw.positive(5), draw.positive(5)
        pairs.append((NormalWishart(m[:, None], k, n, w[:, None, None]), NormalGamma(m, k, 0.5 * n, 0.5 / w)))
    (wishart, gamma), (other_wishart, other_gamma) = pairs
    torch.testing.assert_close(wishart.entropy(), gamma.entropy(), **TIGHT)
    torch.testing.assert_close(wishart.kl(other_wishart), gamma.kl(other_gamma), **TIGHT)
    for a, b in zip(wishart.natural + wishart.expectation, gamma.natural + gamma.expectation, strict=True):
        torch.testing.assert_close(a.reshape(5), b, **TIGHT)


def test_normal_wishart_of_three_dimensions():
    """The density by scipy; entropy by the chain rule H(Λ) + E[H(x | Λ)]; KL by Monte Carlo."""
    draw = Draw(5)
    q, p = (NormalWishart(draw.normal(3), draw.positive(), 5.0 + draw.positive(), draw.definite(3)) for _ in range(2))
    theta = q.sample(10, draw.generator)
    torch.testing.assert_close(q.log_prob(theta), CASES["NormalWishart"].density(q, theta), rtol=1e-10, atol=1e-10)

    law = stats.wishart(q.degrees.item(), q.scale.numpy())
    gaussian = 0.5 * 3 * np.log(2 * np.pi * np.e / q.strength.item()) - 0.5 * q.expectation[0].item()
    assert q.entropy().item() == pytest.approx(law.entropy() + gaussian, rel=1e-12)

    theta = q.sample(100_000, draw.generator)
    ratio = q.log_prob(theta) - p.log_prob(theta)
    assert abs(ratio.mean() - q.kl(p)) < 5.0 * ratio.std() / len(ratio) ** 0.5


def test_product_adds_its_factors():
    draw = Draw(6)
    parts = [CASES[name].make(draw, 2) for name in ("FixedGaussian", "Poisson", "Wishart")]
    others = [CASES[name].make(draw, 2) for name in ("FixedGaussian", "Poisson", "Wishart")]
    q, p = Product(*parts), Product(*others)
    torch.testing.assert_close(q.entropy(), sum(part.entropy() for part in parts), **TIGHT)
    torch.testing.assert_close(q.kl(p), sum(a.kl(b) for a, b in zip(parts, others, strict=True)), **TIGHT)
    theta = q.sample(3, draw.generator)
    assert theta.shape == (3, 2, 2 + 1 + 4)
    assert torch.equal(q.join(q.split(theta)), theta)


def test_product_of_finite_families_has_all_states():
    q = Product(SignBernoulli([0.3, -0.2]), CASES["Categorical"].make(Draw(7)))
    assert q.support().shape == (4 * 4, 2 + 4)
    torch.testing.assert_close(q.log_prob(q.support()).exp().sum(), torch.ones((), dtype=torch.float64))
    with pytest.raises(Undefined, match="infinitely many"):
        Product(Poisson(1.0)).support()


def test_large_log_odds_stay_exact():
    q = SignBernoulli([400.0, -400.0])
    assert q.log_partition().item() == 800.0
    assert q.entropy().item() == 0.0
    torch.testing.assert_close(q.natural[0], q.with_natural(q.natural).natural[0], rtol=0.0, atol=0.0)


@pytest.mark.parametrize("name", ["Gaussian", "DiagonalGaussian", "FixedGaussian"])
def test_gaussians_far_from_zero_keep_their_digits(name):
    """A shift changes neither entropy nor divergence nor density, though mᵀSm is 10¹⁶."""
    q, p = (CASES[name].make(Draw(seed)) for seed in (8, 9))
    far_q, far_p = (type(m)(m.mean + 1e8, m.precision) for m in (q, p))
    theta = torch.tensor([1.0, -2.0], dtype=torch.float64)
    torch.testing.assert_close(far_q.entropy(), q.entropy(), rtol=1e-14, atol=0.0)
    torch.testing.assert_close(far_q.kl(far_p), q.kl(p), rtol=1e-7, atol=0.0)  # m itself is rounded to 10⁻⁸
    torch.testing.assert_close(far_q.log_prob(theta + 1e8), q.log_prob(theta), rtol=1e-7, atol=0.0)
    field, other = Product(far_q, far_q), Product(far_p, far_p)  # a mean field keeps what its factors keep
    torch.testing.assert_close(field.entropy(), 2.0 * q.entropy(), rtol=1e-14, atol=0.0)
    torch.testing.assert_close(field.kl(other), 2.0 * q.kl(p), rtol=1e-7, atol=0.0)
    twice = torch.cat((theta, theta)) + 1e8
    torch.testing.assert_close(field.log_prob(twice), 2.0 * q.log_prob(theta), rtol=1e-7, atol=0.0)


def test_natural_parameters_leave_the_base_measure_constant():
    """With λ = α − 1 half a step of the rule from (1, 1) towards (6, 4) lands on their average."""
    start, target = Dirichlet([1.0, 1.0]), Dirichlet([6.0, 4.0])
    half = start.with_natural((0.5 * start.natural[0] + 0.5 * target.natural[0],))
    assert half.concentration.tolist() == [3.5, 2.5]
