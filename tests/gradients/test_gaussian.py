"""Delta, Monte Carlo and quadrature against closed forms: E_q[exp aᵀθ] = exp(aᵀm + ½aᵀVa)."""

import pytest
import torch
from torch import Tensor

from posterity.errors import InvalidInput
from posterity.families import (
    Categorical,
    DiagonalGaussian,
    Dirichlet,
    Family,
    FixedGaussian,
    Gamma,
    Gaussian,
    MixtureOfGaussians,
)
from posterity.gradients import AtPoints, Delta, Hessian, LinearLoss, MonteCarlo, Quadrature, Stein

A = torch.tensor([0.4, -0.3], dtype=torch.float64)
MEAN = torch.tensor([0.5, -1.0], dtype=torch.float64)
FULL = torch.tensor([[2.0, 0.6], [0.6, 1.5]], dtype=torch.float64)
MEMBERS = {
    "full": Gaussian(MEAN, FULL),
    "diagonal": DiagonalGaussian(MEAN, torch.tensor([2.0, 0.7], dtype=torch.float64)),
    "fixed": FixedGaussian(MEAN, FULL),
}


@pytest.fixture(params=MEMBERS)
def q(request) -> Family:
    return MEMBERS[request.param]


def loss(theta: Tensor) -> Tensor:
    return (A @ theta).exp()


def closed_form(q: Family) -> Tensor:
    covariance = torch.diag(q.variance) if isinstance(q, DiagonalGaussian) else q.covariance
    return (A @ q.mean + 0.5 * A @ covariance @ A).exp()


def by_autograd(q: Family) -> tuple[Tensor, ...]:
    """∇_μ of the closed form, through the family's own map from μ to its parameters."""
    expectation = tuple(block.detach().clone().requires_grad_() for block in q.expectation)
    return torch.autograd.grad(closed_form(q.with_expectation(expectation)), expectation)


def close(found: tuple[Tensor, ...], wanted: tuple[Tensor, ...], tolerance: float) -> None:
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_quadrature_is_the_gradient_in_expectation_parameters(q):
    close(Quadrature(20)(q, loss), by_autograd(q), 1e-12)
    torch.testing.assert_close(Quadrature(20).expectation(q, loss), closed_form(q), rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("curvature", [Hessian(), Stein()], ids=str)
def test_monte_carlo_approaches_it(q, curvature):
    generator = torch.Generator().manual_seed(0)
    many = MonteCarlo(2000, curvature, generator)
    draws = [many(q, loss) for _ in range(30)]
    for block, wanted in zip(zip(*draws, strict=True), by_autograd(q), strict=True):
        sample = torch.stack(block)
        error = sample.std(0) / len(draws) ** 0.5
        assert ((sample.mean(0) - wanted).abs() < 5 * error).all()


def test_delta_evaluates_at_the_mean(q):
    gradient, hessian = A * loss(MEAN), torch.outer(A, A) * loss(MEAN)
    if isinstance(q, FixedGaussian):
        close(Delta()(q, loss), (gradient,), 1e-14)
    elif isinstance(q, DiagonalGaussian):
        close(Delta()(q, loss), (gradient - hessian.diagonal() * MEAN, 0.5 * hessian.diagonal()), 1e-14)
    else:
        close(Delta()(q, loss), (gradient - hessian @ MEAN, 0.5 * hessian), 1e-14)


def test_quadratic_losses_are_exact_for_all(q):
    def quadratic(theta: Tensor) -> Tensor:
        return 0.5 * theta @ FULL @ theta + A @ theta

    close(Delta()(q, quadratic), Quadrature(3)(q, quadratic), 1e-12)
    if not isinstance(q, FixedGaussian):  # whose delta method stops at the first order
        exact = Quadrature(3).expectation(q, quadratic)
        torch.testing.assert_close(Delta().expectation(q, quadratic), exact, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("kind", ["gaussian", "bernoulli", "poisson"])
def test_linear_losses_need_one_dimension(q, kind):
    X = torch.tensor([[1.0, 0.5], [-0.3, 0.8], [0.2, -1.0]], dtype=torch.float64)
    y = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    linear = LinearLoss(inputs=X, targets=y, likelihood=kind, n=30)
    close(Quadrature(60)(q, linear), Quadrature(60)(q, lambda theta: linear(theta)), 1e-8)
    grid = Quadrature(60).expectation(q, lambda theta: linear(theta))
    torch.testing.assert_close(Quadrature(60).expectation(q, linear), grid, rtol=1e-8, atol=0.0)


def test_linear_losses_keep_their_regulariser():
    X, y = torch.eye(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    bare = LinearLoss(inputs=X, targets=y, likelihood="bernoulli")
    full = LinearLoss(inputs=X, targets=y, likelihood="bernoulli", regulariser=lambda t: 0.5 * t @ t)
    q = MEMBERS["full"]
    wanted = tuple(a + b for a, b in zip(Quadrature(40)(q, bare), Quadrature(3)(q, lambda t: 0.5 * t @ t), strict=True))
    close(Quadrature(40)(q, full), wanted, 1e-7)


def test_a_batch_of_members_is_each_of_them():
    second = torch.tensor([1.0, 0.3], dtype=torch.float64)
    both = Gaussian(torch.stack((MEAN, second)), torch.stack((FULL, 2.0 * FULL)))
    for estimator in (Delta(), Quadrature(8)):
        found = estimator(both, loss)
        for i, member in enumerate((Gaussian(MEAN, FULL), Gaussian(second, 2.0 * FULL))):
            close(tuple(block[i] for block in found), estimator(member, loss), 1e-13)


def test_mixtures_by_quadrature_are_the_gradient_of_the_closed_form():
    q = MixtureOfGaussians.of([0.3, 0.7], [[0.5, -1.0], [1.0, 0.3]], torch.stack((FULL, 2.0 * FULL)))

    def expected_loss(member: MixtureOfGaussians) -> Tensor:
        spread = (A @ member.conditional.covariance @ A.unsqueeze(-1)).squeeze(-1)
        return (member.weights * (member.conditional.mean @ A + 0.5 * spread).exp()).sum()

    close(Quadrature(20)(q, loss), q.natural_gradient(expected_loss), 1e-12)
    torch.testing.assert_close(Quadrature(20).expectation(q, loss), expected_loss(q), rtol=1e-12, atol=0.0)


def test_what_cannot_be_is_refused():
    with pytest.raises(InvalidInput, match="a Gaussian q, got 'Gamma'"):
        Quadrature()(Gamma(2.0, 1.0), loss)
    for other in (Gamma(2.0, 1.0), Dirichlet([1.0, 2.0]), Categorical([0.5, 1.0])):
        with pytest.raises(InvalidInput, match="statistic is θ itself"):
            Delta()(other, loss)
    with pytest.raises(InvalidInput, match=r"20\^6"):
        Quadrature(20)(Gaussian.standard(6), loss)
    with pytest.raises(InvalidInput, match="nodes"):
        Quadrature(1000)
    with pytest.raises(InvalidInput, match="samples"):
        MonteCarlo(0)
    with pytest.raises(InvalidInput, match="at"):
        Delta(at="median")
    with pytest.raises(InvalidInput, match="a q over bits"):
        Delta(at="mode")(MEMBERS["fixed"], loss)


def test_given_points_are_those_of_a_sample(q):
    points = q.sample(7, torch.Generator().manual_seed(3))
    close(AtPoints(points)(q, loss), MonteCarlo(7, generator=torch.Generator().manual_seed(3))(q, loss), 1e-12)
    with pytest.raises(InvalidInput, match="points"):
        AtPoints(points[0])
