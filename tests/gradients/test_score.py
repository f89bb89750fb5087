"""The score function, which knows every family, against the estimators and closed forms that know one."""

import math

import pytest
import torch
from torch import Tensor

from posterity.errors import InvalidInput
from posterity.families import Gamma, Gaussian, MixtureOfGaussians, SignBernoulli, StudentT
from posterity.gradients import Conjugate, ConjugateLoss, Enumeration, Quadrature, ScoreFunction

DOUBLE = torch.float64


def smooth(theta: Tensor) -> Tensor:
    return (theta - 0.3).square().sum() + theta.sum().sin()


def agree(q, loss, wanted: tuple[Tensor, ...], samples: int = 4000, repeats: int = 30) -> None:
    """The average over repeats is within five standard errors of what is wanted."""
    estimator = ScoreFunction(samples, torch.Generator().manual_seed(1))
    draws = [estimator(q, loss) for _ in range(repeats)]
    for block, exact in zip(zip(*draws, strict=True), wanted, strict=True):
        sample = torch.stack(block)
        error = sample.std(0) / math.sqrt(repeats)
        assert ((sample.mean(0) - exact).abs() <= 5 * error).all()


def test_bits():
    q = SignBernoulli(torch.tensor([0.3, -0.8], dtype=DOUBLE))
    agree(q, smooth, Enumeration()(q, smooth))


def test_gaussian():
    q = Gaussian(torch.tensor([0.5, -1.0], dtype=DOUBLE), torch.tensor([[2.0, 0.6], [0.6, 1.5]], dtype=DOUBLE))
    agree(q, smooth, Quadrature(20)(q, smooth))


def test_gamma():
    q = Gamma(3.0, 2.0)
    linear = ConjugateLoss((torch.tensor(2.0, dtype=DOUBLE), torch.tensor(-1.5, dtype=DOUBLE)))
    agree(q, lambda x: -2.0 * x.log() + 1.5 * x, Conjugate()(q, linear))


def test_mixture():
    q = MixtureOfGaussians.of([0.3, 0.7], [[-0.5], [0.8]], [[[2.0]], [[3.0]]])
    agree(q, smooth, Quadrature(30)(q, smooth))


def test_student_t():
    q = StudentT.of(9.0, [0.4], [[2.0]])

    def second_moment(member: StudentT) -> Tensor:
        return (member.variance + member.conditional.mean**2).sum()

    agree(q, lambda theta: theta.square().sum(), q.natural_gradient(second_moment), samples=8000)


def test_the_baseline_takes_the_size_of_the_loss_away():
    q = Gaussian.standard(2)
    plain = ScoreFunction(50, torch.Generator().manual_seed(0))(q, smooth)
    lifted = ScoreFunction(50, torch.Generator().manual_seed(0))(q, lambda theta: smooth(theta) + 1e6)
    for a, b in zip(plain, lifted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_one_sample_has_no_others():
    with pytest.raises(InvalidInput, match="a whole number >= 2"):
        ScoreFunction(1)


@pytest.mark.parametrize("estimator", [ScoreFunction(5), Quadrature(5)], ids=str)
def test_a_loss_is_one_number(estimator):
    with pytest.raises(InvalidInput, match=r"loss: expected one number for each θ, got 'shape \(1,\)'"):
        estimator.expectation(Gaussian.standard(1), lambda theta: theta**2)
