"""Families at their edges: borders of the support, tiny concentrations, locations far from zero, other devices."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from posterity.errors import InvalidInput
from posterity.families import (
    Beta,
    DiagonalGaussian,
    Dirichlet,
    FixedGaussian,
    Gamma,
    Gaussian,
    MixtureOfGaussians,
    NormalGamma,
    NormalWishart,
    Poisson,
    Product,
    SignBernoulli,
    StudentT,
    Wishart,
)
from posterity.families.checks import parameters


def double(values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("q", "theta", "exact"),
    [
        (Gamma(1.0, 2.0), 0.0, stats.gamma(1.0, scale=0.5).logpdf(0.0)),
        (Beta(1.0, 3.0), 0.0, stats.beta(1.0, 3.0).logpdf(0.0)),
        (Beta(3.0, 1.0), 1.0, stats.beta(3.0, 1.0).logpdf(1.0)),
        (Gamma(2.0, 2.0), 0.0, -math.inf),
        (Gamma(0.5, 2.0), 0.0, math.inf),
        (Dirichlet([1.0, 1.0, 1.0]), [0.0, 0.5, 0.5], math.log(2.0)),
    ],
)
def test_density_at_the_border_of_the_support(q, theta, exact):
    assert q.log_prob(double(theta)).item() == pytest.approx(exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("concentration", [0.01, 0.001])
def test_tiny_concentrations_draw_from_the_corners(dtype, concentration):
    alpha = torch.full((2,), concentration, dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    inside = 1.0 - 2.0 * stats.beta(concentration, concentration).cdf(0.01)
    for q in (Dirichlet(alpha), Beta(alpha[0], alpha[1])):
        draws = q.sample(20_000, generator)
        first = draws[..., 0] if draws.ndim > 1 else draws
        share = ((first > 0.01) & (first < 0.99)).double().mean().item()
        assert share == pytest.approx(inside, abs=4.0 * math.sqrt(inside / 20_000))
        assert q.log_prob(draws).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", [[1e-4, 1e-4], [1e-4, 1.0], [1e-6, 1e-6, 1e-6, 2e-6]])
def test_tiny_concentrations_are_found_from_expectations(dtype, alpha):
    q = Dirichlet(torch.tensor(alpha, dtype=dtype))
    for found in (
        Dirichlet.from_expectation(q.expectation),
        Dirichlet(torch.ones_like(q.mean)).with_expectation(q.expectation),
    ):
        torch.testing.assert_close(found.concentration, q.concentration, rtol=5e-3, atol=0.0)
    same = Beta.from_expectation(Beta(*q.concentration[:2]).expectation)
    torch.testing.assert_close(torch.stack((same.a, same.b)), q.concentration[:2], rtol=5e-3, atol=0.0)


@pytest.mark.parametrize("alpha", [[0.3, 0.7, 2.0], [5.0, 1.0, 0.05]])
def test_moments_of_dirichlet_draws(alpha):
    q = Dirichlet(alpha)
    draws = q.sample(100_000, torch.Generator().manual_seed(1)).numpy()
    exact = stats.dirichlet(alpha)
    np.testing.assert_allclose(draws.mean(0), exact.mean(), atol=0.005)
    np.testing.assert_allclose(draws.var(0), exact.var(), atol=0.005)


def test_barely_proper_wisharts_can_be_drawn():
    scale = torch.tensor([[2.0, 0.5], [0.5, 1.0]])
    q = NormalWishart(torch.zeros(2), torch.tensor(4.0), torch.tensor(1.01), scale)
    draws = q.sample(2_000, torch.Generator().manual_seed(0))
    assert draws.shape == (2_000, 3, 2)
    assert draws.isfinite().all()


def test_draws_of_a_vector_spread_as_its_precision_says():
    q = NormalWishart([1.0, -1.0], 4.0, 9.0, [[0.2, 0.05], [0.05, 0.1]])
    x, precision = q.split(q.sample(100_000, torch.Generator().manual_seed(0)))
    away = x - q.location
    whitened = 4.0 * torch.einsum("ni,nij,nj->n", away, precision, away)  # χ² with two degrees of freedom
    assert whitened.mean().item() == pytest.approx(2.0, abs=0.03)
    np.testing.assert_allclose(away.var(0).numpy(), q.variance[0].numpy(), rtol=0.05)


@pytest.mark.parametrize("far", [0.0, 1e6, 1e9])
def test_normal_gamma_far_from_zero(far):
    q, p = NormalGamma(far, 1000.0, 50.0, 2.0), NormalGamma(far + 0.25, 900.0, 45.0, 2.0)
    theta = double([far + 0.25, 20.0])
    exact = stats.gamma(50.0, scale=0.5).logpdf(20.0) + stats.norm(0.0, (1000.0 * 20.0) ** -0.5).logpdf(0.25)
    assert q.log_prob(theta).item() == pytest.approx(exact, rel=1e-12)
    near, other = NormalGamma(0.0, 1000.0, 50.0, 2.0), NormalGamma(0.25, 900.0, 45.0, 2.0)
    assert q.entropy().item() == pytest.approx(_generic_entropy(near), rel=1e-12)
    assert q.kl(p).item() == pytest.approx(_generic_kl(near, other), rel=1e-12)


@pytest.mark.parametrize("far", [0.0, 1e6, 1e9])
def test_normal_wishart_far_from_zero(far):
    scale = double([[0.5, 0.1], [0.1, 0.25]])
    q = NormalWishart(double([0.0, 1.0]) + far, 1000.0, 6.0, scale)
    p = NormalWishart(double([0.25, 0.5]) + far, 900.0, 5.0, 1.5 * scale)
    precision = double([[4.0, 1.0], [1.0, 3.0]])
    theta = torch.cat((double([[0.25, 1.0]]) + far, precision))
    of_x = stats.multivariate_normal([0.0, 0.0], np.linalg.inv(1000.0 * precision)).logpdf([0.25, 0.0])
    exact = stats.wishart(6.0, scale.numpy()).logpdf(precision.numpy()) + of_x
    assert q.log_prob(theta).item() == pytest.approx(exact, rel=1e-12)
    near = NormalWishart([0.0, 1.0], 1000.0, 6.0, scale)
    other = NormalWishart([0.25, 0.5], 900.0, 5.0, 1.5 * scale)
    assert q.entropy().item() == pytest.approx(_generic_entropy(near), rel=1e-12)
    assert q.kl(p).item() == pytest.approx(_generic_kl(near, other), rel=1e-12)


def _generic_entropy(q):
    """A(λ) − ⟨λ, μ⟩: what every exponential family has."""
    return (q.log_partition() - q.pair(q.natural, q.expectation)).item()


def _generic_kl(q, p):
    difference = tuple(a - b for a, b in zip(q.natural, p.natural, strict=True))
    return (q.pair(difference, q.expectation) - q.log_partition() + p.log_partition()).item()


@pytest.mark.parametrize(
    ("family", "ours", "theirs", "theta"),
    [
        (Gamma, (1e5, 2.0), (1.01e5, 2.1), 5e4),
        (Gamma, (1e-6, 2.0), (2e-6, 2.0), 1e-3),
        (Beta, (1e5, 1e6), (1.01e5, 1e6), 0.0909),
        (Dirichlet, ([1e5, 3.0, 1e-3],), ([1.01e5, 3.1, 1e-3],), [0.999, 9e-4, 1e-4]),
        (Poisson, (1e3,), (1.001e3,), 990.0),
        (Wishart, (1e5, [[2.0, 0.5], [0.5, 1.0]]), (1.01e5, [[2.0, 0.5], [0.5, 1.0]]), [[2e5, 5e4], [5e4, 1e5]]),
    ],
)
def test_single_precision_rounds_the_answer_and_not_its_terms(family, ours, theirs, theta):
    q, p = (family(*(torch.tensor(part) for part in parts)) for parts in (ours, theirs))
    theta = torch.tensor(theta)
    wide_q, wide_p = (family(*(torch.tensor(part).double() for part in parts)) for parts in (ours, theirs))
    pairs = [(q.entropy(), wide_q.entropy()), (q.kl(p), wide_q.kl(wide_p))]
    for single, double in [*pairs, (q.log_prob(theta), wide_q.log_prob(theta.double()))]:
        assert single.dtype == torch.float32
        torch.testing.assert_close(single.double(), double, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("family", [Gaussian, FixedGaussian, DiagonalGaussian])
def test_single_precision_keeps_the_divergence_of_neighbours(family):
    noise = torch.randn(20, 20, generator=torch.Generator().manual_seed(0))
    precision = torch.ones(20) if family is DiagonalGaussian else noise @ noise.T / 20 + torch.eye(20)
    wider = 1.0 if family is FixedGaussian else 1.0 + 2.0**-12
    q, p = family(torch.full((20,), 100.0), precision), family(torch.full((20,), 100.0 + 2.0**-12), wider * precision)
    q.variance  # what a member remembers changes nothing
    wide = (family(member.mean.double(), member.precision.double()).to_torch() for member in (q, p))
    np.testing.assert_allclose(q.kl(p).item(), torch.distributions.kl_divergence(*wide).item(), rtol=1e-3)


def test_small_last_weights_of_mixtures_are_kept():
    q = MixtureOfGaussians.of([0.3, 0.7, 1e-20], [[0.0], [1.0], [2.0]], [[[1.0]]] * 3)
    np.testing.assert_allclose(q.weights.numpy(), [0.3, 0.7, 1e-20], rtol=1e-12)
    with pytest.raises(InvalidInput, match="weights"):
        MixtureOfGaussians.of([0.3, 0.7, 0.0], [[0.0], [1.0], [2.0]], [[[1.0]]] * 3)


@pytest.mark.parametrize("degrees", [1.0, 20.0, 40.0, 1e4, 1e8, 1e16])
def test_student_t_of_many_degrees_is_a_gaussian(degrees):
    theta = double([1.0, -2.0])
    q = StudentT.of(degrees, [0.0, 0.0], [[2.0, 0.5], [0.5, 1.0]])
    shape = np.linalg.inv([[2.0, 0.5], [0.5, 1.0]])
    if degrees < 1e6:
        exact = stats.multivariate_t([0.0, 0.0], shape, df=degrees).logpdf(theta.numpy())
    else:
        exact = stats.multivariate_normal([0.0, 0.0], shape).logpdf(theta.numpy())
    assert q.log_prob(theta).item() == pytest.approx(exact, rel=1e-11 if degrees < 1e6 else 1e-7)


def test_a_fixed_covariance_is_the_same_in_a_batch():
    batch = FixedGaussian(torch.ones(5, 2, dtype=torch.float64), torch.eye(2, dtype=torch.float64))
    assert batch.kl(FixedGaussian.standard(2)).tolist() == [1.0] * 5
    with pytest.raises(InvalidInput, match="2 entries"):
        batch.with_natural((torch.zeros(3),))


@pytest.mark.parametrize("q", [FixedGaussian.standard(2), Product(Gamma(1.0, 1.0), Gamma(1.0, 1.0))])
def test_a_theta_of_another_size_does_not_broadcast(q):
    with pytest.raises(InvalidInput, match="last axes"):
        q.log_prob(torch.ones(5, 1, dtype=torch.float64))


def test_functional_derivatives_go_through_digamma():
    slope = torch.func.grad(lambda shape: Gamma(shape, 2.0).expectation[0])(double(3.0))
    assert slope.item() == pytest.approx(math.pi**2 / 6.0 - 1.25, rel=1e-14)  # ψ'(3)


def test_nearly_certain_signs_and_lopsided_betas_have_a_variance():
    half_log_odds = double([0.0, 400.0, 800.0]).requires_grad_()
    variance = SignBernoulli(half_log_odds).variance
    (slope,) = torch.autograd.grad(variance.sum(), half_log_odds)
    assert variance.tolist() == [1.0, 0.0, 0.0]
    assert slope.tolist() == [0.0, 0.0, 0.0]
    assert Beta(1e9, 1e-9).variance.item() == pytest.approx(1e-27, rel=1e-6)


def test_negative_definite_matrices_have_no_density():
    q = Wishart(4.0, torch.eye(2, dtype=torch.float64))
    both = torch.stack((torch.eye(2), -torch.eye(2))).double()
    first, second = q.log_prob(both)
    assert first.item() == pytest.approx(stats.wishart(4.0, np.eye(2)).logpdf(np.eye(2)))
    assert second.isnan()


def test_numbers_follow_tensors_to_their_device(monkeypatch):
    monkeypatch.setattr(torch, "isfinite", lambda tensor: torch.ones(1))  # meta tensors hold no numbers to look at
    shape, rate = parameters({"shape": (torch.ones(3, device="meta"), 0), "rate": (2.0, 0)})
    assert shape.device.type == rate.device.type == "meta"
