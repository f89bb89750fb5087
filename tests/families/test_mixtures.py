"""Mixtures: densities from scipy, natural gradients against the Fisher matrix of the joint by quadrature."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from families.cases import Draw, grid, line
from posterity.errors import InvalidInput
from posterity.families import Categorical, ConditionalFamily, Gaussian, MixtureOfGaussians, StudentT, UnitGamma

MAKERS = {
    "MixtureOfGaussians": lambda r, d, *b: MixtureOfGaussians(
        Categorical(r.normal(*b, 2)), Gaussian(r.normal(*b, 3, d), r.definite(*b, 3, d))
    ),
    "StudentT": lambda r, d, *b: StudentT(
        UnitGamma(3.0 + r.positive(*b)), Gaussian(r.normal(*b, d), r.definite(*b, d))
    ),
}


@pytest.fixture(params=MAKERS, ids=str)
def make(request):
    return MAKERS[request.param]


def loss(theta: torch.Tensor) -> torch.Tensor:
    return torch.cos(theta).sum(-1) + 0.05 * theta.sum(-1) ** 3


def assert_blocks(actual, wanted, tolerance=1e-11):
    for a, b in zip(actual, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_round_trips(make):
    q, elsewhere = make(Draw(0), 2, 4), make(Draw(1), 2, 4)
    assert_blocks(elsewhere.with_natural(q.natural).natural, q.natural)
    assert_blocks(elsewhere.with_expectation(q.expectation).natural, q.natural)


def test_samples_have_the_moments(make):
    q, n = make(Draw(2), 2, 3), 40_000
    theta = q.sample(n, torch.Generator().manual_seed(0))
    assert theta.shape == (n, 3, 2)
    assert ((theta.mean(0) - q.mean).abs() < 5.0 * theta.std(0) / n**0.5).all()
    torch.testing.assert_close(theta.var(0), q.variance, rtol=0.1, atol=0.0)


def test_mixture_equals_scipy_and_torch():
    q = MAKERS["MixtureOfGaussians"](Draw(3), 2)
    theta = q.sample(20, torch.Generator().manual_seed(1))
    each = zip(q.weights, q.conditional.mean, q.conditional.covariance, strict=True)
    densities = [w.item() * stats.multivariate_normal.pdf(theta, m, v) for w, m, v in each]
    torch.testing.assert_close(q.log_prob(theta), torch.tensor(np.log(sum(densities))), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(q.responsibilities(theta), torch.tensor(np.array(densities) / sum(densities)).T)
    torch.testing.assert_close(q.to_torch().log_prob(theta), q.log_prob(theta))
    torch.testing.assert_close(q.to_torch().variance, q.variance)


def test_student_t_equals_scipy():
    q = MAKERS["StudentT"](Draw(4), 3)
    theta = q.sample(20, torch.Generator().manual_seed(1))
    law = stats.multivariate_t(q.conditional.mean.numpy(), q.conditional.covariance.numpy(), df=q.degrees.item())
    torch.testing.assert_close(q.log_prob(theta), torch.as_tensor(law.logpdf(theta.numpy())), rtol=1e-11, atol=1e-11)


def test_student_t_without_moments_says_so():
    assert StudentT.of(1.5, [0.0], [[1.0]]).variance.isinf().all()
    assert StudentT.of(1.0, [0.0], [[1.0]]).mean.isnan().all()


# The joint log q(θ, z) at nodes that integrate over θ and z, for d = 1.


def mixture_nodes(q):
    (t, w), components = line(-14.0, 14.0, 0.1), len(q.weights)
    weights = w.repeat_interleave(components)
    states = torch.arange(components).repeat(len(t))
    theta = t.repeat_interleave(components)[:, None]

    def joint(p):
        of_component = p.conditional.log_prob(theta.unsqueeze(-2))
        return (p.mixing.log_probabilities + of_component)[torch.arange(len(states)), states]

    return theta, weights, joint


def scale_nodes(q):
    """θ = m + s/√u, so that one grid of s fits every u."""
    t, w = grid(line(-12.0, 12.0, 0.2), line(-16.0, 4.0, 0.1))
    u = t[:, 1].exp()
    theta = (q.conditional.mean.detach() + t[:, 0] / u.sqrt())[:, None]

    def joint(p):
        scaled = Gaussian(p.conditional.mean.expand(len(u), 1), u[:, None, None] * p.conditional.precision)
        return scaled.log_prob(theta) + p.mixing.log_prob(u)

    return theta, w * u.sqrt(), joint


@pytest.mark.parametrize(("name", "nodes"), [("MixtureOfGaussians", mixture_nodes), ("StudentT", scale_nodes)])
def test_natural_gradient_solves_with_the_fisher_matrix_of_the_joint(name, nodes):
    q: ConditionalFamily = MAKERS[name](Draw(5), 1)
    theta, weights, joint = nodes(q)

    def average(p):
        return (weights * joint(p).exp()) @ loss(theta)

    flat, shapes = torch.cat([b.flatten() for b in q.natural]), [b.shape for b in q.natural]

    def member(vector):
        pieces = vector.split([shape.numel() for shape in shapes])
        return q.with_natural(tuple(p.reshape(s) for p, s in zip(pieces, shapes, strict=True)))

    mass = weights * joint(q).exp()
    fisher = -torch.autograd.functional.hessian(lambda vector: mass @ joint(member(vector)), flat)
    slope = torch.autograd.functional.jacobian(lambda vector: average(member(vector)), flat)
    gradient = torch.cat([block.flatten() for block in q.natural_gradient(average)])
    torch.testing.assert_close(gradient, torch.linalg.solve(fisher, slope), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(mass.sum().item(), 1.0)


def test_natural_gradient_of_the_free_energy_of_a_mixture():
    """∇ = (E_k[f] − E_K[f], E_k[f'] − E_k[f'']m_k, ½E_k[f'']) with f = ℓ + log q, by Bonnet and Price."""
    q = MAKERS["MixtureOfGaussians"](Draw(6), 1)
    t, w = line(-14.0, 14.0, 0.1)
    theta = t[:, None].requires_grad_()

    def free_energy(p):
        return (w * p.log_prob(theta.detach()).exp()) @ (loss(theta.detach()) + p.log_prob(theta.detach()))

    value = loss(theta) + q.log_prob(theta)
    (slope,) = torch.autograd.grad(value.sum(), theta, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), theta)
    mass = w[:, None] * q.conditional.log_prob(theta.unsqueeze(-2)).exp()
    f, g, h = ((mass * column.reshape(-1, 1)).sum(0).detach() for column in (value, slope, curvature))
    wanted = (f[:-1] - f[-1], (g - h * q.conditional.mean[:, 0])[:, None], 0.5 * h[:, None, None])
    assert_blocks(q.natural_gradient(free_energy), wanted, 1e-9)


def test_natural_gradient_of_the_mean_leaves_the_precisions_alone(make):
    q = make(Draw(7), 2)
    *_, linear, quadratic = q.natural_gradient(lambda p: p.mean)
    torch.testing.assert_close(linear, torch.ones_like(linear))
    assert not quadratic.any()


def test_invalid_parts():
    with pytest.raises(InvalidInput, match="sum to one"):
        MixtureOfGaussians.of([0.5, 0.6], torch.zeros(2, 1), torch.ones(2, 1, 1))
    with pytest.raises(InvalidInput, match=r"expected the shape \(2,\), got \(3,\)"):
        MixtureOfGaussians.of([0.5, 0.5], torch.zeros(3, 1), torch.ones(3, 1, 1))
    with pytest.raises(InvalidInput, match="a Categorical and a Gaussian"):
        MixtureOfGaussians(UnitGamma(1.0), Gaussian.standard(1))
    with pytest.raises(InvalidInput, match="a UnitGamma and a Gaussian"):
        StudentT(Categorical([0.0]), Gaussian.standard(1))
    with pytest.raises(InvalidInput, match=r"degrees: expected .* got -1.0"):
        StudentT.of(-1.0, [0.0], [[1.0]])


def test_a_mixture_of_one_is_its_component():
    alone = Gaussian([0.3, -1.0], [[2.0, 0.5], [0.5, 1.0]])
    q = MixtureOfGaussians.of([1.0], alone.mean[None], alone.precision[None])
    theta = q.sample(5, torch.Generator().manual_seed(0))
    torch.testing.assert_close(q.log_prob(theta), alone.log_prob(theta))
    torch.testing.assert_close(q.variance, alone.variance)
    assert q.weights.tolist() == [1.0]
    assert q.natural[0].shape == (0,)
