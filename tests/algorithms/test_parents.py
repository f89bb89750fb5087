"""Approximations switched off one by one: each row lands on its parent, and the last on a reference outside."""

import ast
from pathlib import Path

import pytest
import torch
from torch import Tensor

from posterity import algorithms
from posterity.algorithms import (
    adam,
    adamw,
    bayesbinn,
    bernoulli_rule,
    gaussian_vi,
    gradient_descent,
    mixture_vi,
    momentum,
    multimodal,
    newton,
    ogn,
    rmsprop,
    sgd,
    straight_through,
    vogn,
)
from posterity.families import DiagonalGaussian, Gaussian, MixtureOfGaussians
from posterity.gradients import Delta, Enumeration, Hessian, LinearLoss, MonteCarlo, Quadrature, SquaredGradients
from posterity.rule import robbins_monro

DOUBLE = torch.float64
X = torch.randn(20, 3, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
Y = (torch.arange(20) % 2).to(DOUBLE)
START = torch.tensor([0.3, -0.2, 0.5], dtype=DOUBLE)
LOSS = LinearLoss(inputs=X, targets=Y, likelihood="bernoulli", regulariser=lambda theta: 0.5 * theta @ theta)


def same(a, b) -> None:
    for left, right in zip(a.natural, b.natural, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)


def outside(theta: Tensor) -> Tensor:
    """The same loss, not in the package's words."""
    return torch.nn.functional.binary_cross_entropy_with_logits(X @ theta, Y, reduction="sum") + 0.5 * theta @ theta


def derivatives(theta: Tensor) -> tuple[Tensor, Tensor]:
    functional = torch.autograd.functional
    return functional.jacobian(outside, theta), functional.hessian(outside, theta)


def test_adam_down_to_diagonal_newton():
    same(adamw(0.1, weight_decay=0.0).run(START, LOSS, 5), adam(0.1).run(START, LOSS, 5))
    without_momentum = adam(0.1, betas=(0.9, 0.99)).but(momentum=0.0, debias=False)
    same(without_momentum.run(START, LOSS, 5), rmsprop(0.1, 0.99).run(START, LOSS, 5))

    # Without the square root: m ← m − ρ g/s, s ← βs + (1−β)g².
    without_root = rmsprop(0.1, 0.5).but(square_root=None)
    mean, scale = START, torch.zeros_like(START)
    for _ in range(3):
        gradient, _ = derivatives(mean)
        scale = 0.5 * scale + 0.5 * gradient**2
        mean = mean - 0.1 * gradient / scale
    torch.testing.assert_close(without_root.run(START, LOSS, 3).mean, mean)

    # With the true Hessian, and without a slow scale: diagonal Newton.
    diagonal_newton = without_root.but(gradient=Delta(), slow_scale=None, lr=1.0)
    mean = START
    for _ in range(4):
        gradient, hessian = derivatives(mean)
        mean = mean - gradient / hessian.diagonal()
    q = diagonal_newton.run(START, LOSS, 4)
    torch.testing.assert_close(q.mean, mean)


def test_newton_is_the_same_with_a_full_covariance():
    mean = START
    for _ in range(3):
        gradient, hessian = derivatives(mean)
        mean = mean - torch.linalg.solve(hessian, gradient)
    torch.testing.assert_close(newton().run(START, LOSS, 3).mean, mean)


def test_momentum_down_to_gradient_descent():
    same(momentum(0.05, beta=0.0).run(START, LOSS.minibatches(5), 4), sgd(0.05).run(START, LOSS.minibatches(5), 4))
    same(sgd(0.05).run(START, LOSS.minibatches(20), 4), gradient_descent(0.05).run(START, LOSS, 4))


def test_vogn_with_the_delta_method_is_ogn():
    delta = vogn(0.2).but(gradient=Delta(SquaredGradients(per_example=True)))
    same(delta.run(START, LOSS, 5), ogn(0.2).run(START, LOSS, 5))


def test_vogn_with_the_true_hessian_and_many_samples_is_exact_variational_inference():
    data = LinearLoss(inputs=X, targets=Y, likelihood="bernoulli")
    prior = DiagonalGaussian.standard(3)
    exact = vogn(0.5).but(gradient=Quadrature(40), prior=prior).run(START, data, 200, tolerance=1e-10)
    sampled = MonteCarlo(100, Hessian(), torch.Generator().manual_seed(0))
    q = vogn().but(gradient=sampled, prior=prior, lr=robbins_monro(1.0, 1.0)).run(START, data, 200)
    torch.testing.assert_close(q.mean, exact.mean, rtol=0.0, atol=0.02)
    torch.testing.assert_close(q.variance, exact.variance, rtol=0.02, atol=0.0)


def test_ogn_with_the_true_hessian_is_diagonal_newton():
    q = ogn(1.0).but(gradient=Delta(Hessian())).run(START, LOSS, 1)
    gradient, hessian = derivatives(START)
    torch.testing.assert_close(q.mean, START - gradient / hessian.diagonal())


def test_bayesbinn_with_the_delta_method_is_the_straight_through_estimator():
    delta = bayesbinn(0.1).but(gradient=Delta(at="mode"), temperature=0.0)
    same(delta.run(START, LOSS, 5), straight_through(0.1).run(START, LOSS, 5))
    latent = START
    for _ in range(5):
        latent = latent - 0.1 * derivatives(torch.where(latent >= 0, 1.0, -1.0).to(DOUBLE))[0]
    torch.testing.assert_close(delta.run(START, LOSS, 5).natural[0], latent)


def test_bayesbinn_without_the_relaxation_is_the_bernoulli_rule():
    exact = bayesbinn(0.1).but(gradient=Enumeration())
    same(exact.run(START, LOSS, 3), bernoulli_rule(0.1).run(START, LOSS, 3))


def test_gaussian_vi_with_the_delta_method_is_newton():
    prior = Gaussian.standard(3)
    data = LinearLoss(inputs=X, targets=Y, likelihood="bernoulli")
    delta = gaussian_vi(prior).but(gradient=Delta(), lr=1.0)
    same(delta.run(START, data, 4), newton().run(START, LOSS, 4))


def test_mixture_vi_with_the_delta_method_is_multimodal_optimisation():
    means = torch.stack((START, -START))
    same(mixture_vi(0.1).but(gradient=Delta()).run(means, LOSS, 3), multimodal(0.1).run(means, LOSS, 3))


def test_components_that_coincide_are_one_gaussian():
    q = MixtureOfGaussians.of([0.3, 0.7], torch.stack((START, START)), torch.eye(3, dtype=DOUBLE).repeat(2, 1, 1))
    together = multimodal(0.1, retracted=False).rule.run(q, LOSS, 5)
    alone = newton(0.1).run(START, LOSS, 5)
    torch.testing.assert_close(together.conditional.mean, alone.mean.expand(2, 3))
    torch.testing.assert_close(together.conditional.precision, alone.precision.expand(2, 3, 3))
    torch.testing.assert_close(together.weights, q.weights)


def test_one_component_is_newton():
    q = multimodal(0.1, retracted=False).run(START[None], LOSS, 5)
    same(q.conditional, newton(0.1).rule.run(Gaussian(START[None], torch.eye(3, dtype=DOUBLE)[None]), LOSS, 5))


GROUPS = ("binary", "mixtures", "optimisers", "regression", "variational")
FILES = [Path(algorithms.__file__).parent / f"{group}.py" for group in GROUPS]


@pytest.mark.parametrize("path", FILES, ids=GROUPS)
def test_a_row_contains_no_update_arithmetic(path):
    forbidden = (ast.Add, ast.Sub, ast.Div, ast.MatMult, ast.Pow)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not [n.lineno for n in ast.walk(tree) if isinstance(n, ast.BinOp) and isinstance(n.op, forbidden)]
    assert not [n.lineno for n in ast.walk(tree) if isinstance(n, ast.AugAssign)]
