"""Algorithms at their edges: huge and tiny gradients, single precision, data far from zero, batches of starts."""

from fractions import Fraction

import pytest
import torch

from posterity.algorithms import (
    LinearStateSpace,
    adam,
    bernoulli_rule,
    beta_bernoulli,
    gamma_poisson,
    gradient_descent,
    kalman_filter,
    newton,
    normal_gamma,
    rmsprop,
)
from posterity.errors import InvalidInput
from posterity.families import Beta, Categorical, Gamma, NormalGamma
from posterity.gradients import Enumeration

DOUBLE = torch.float64


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize(("scale", "start"), [(1e6, 10.0), (1e8, 1000.0), (1.0, 1.0), (1e-9, 1.0)])
@pytest.mark.parametrize(("ours", "theirs"), [(adam, torch.optim.Adam), (rmsprop, torch.optim.RMSprop)])
def test_torchs_optimizers_at_any_scale_of_the_loss(ours, theirs, scale, start, dtype):
    target = torch.linspace(-1.0, 1.0, 5, dtype=dtype)

    def loss(theta):
        return scale * ((theta - target) ** 2).sum()

    weights = torch.full((5,), start, dtype=dtype, requires_grad=True)
    optimizer = theirs([weights], lr=0.01)
    for _ in range(20):
        optimizer.zero_grad()
        loss(weights).backward()
        optimizer.step()
    q = ours(lr=0.01).run(torch.full((5,), start, dtype=dtype), loss, steps=20)
    way = (weights.detach() - start).abs().max().item()
    tolerance = 4.0 * torch.finfo(dtype).eps * max(start, 1.0) + 1e-6 * way
    assert (q.mean - weights.detach()).abs().max().item() < tolerance
    assert way > 0.01


def test_many_starts_at_once():
    starts = torch.tensor([[0.0, 1.0], [2.0, -3.0], [5.0, 5.0]], dtype=DOUBLE)
    for algorithm in (newton(), gradient_descent(lr=0.5)):
        q = algorithm.run(starts, lambda theta: ((theta - 4.0) ** 2).sum(), steps=1)
        torch.testing.assert_close(q.mean, torch.full_like(starts, 4.0))


def test_one_class_alone_is_at_rest():
    rule = bernoulli_rule().but(gradient=Enumeration()).rule
    q = rule.run(Categorical(torch.zeros(0, dtype=DOUBLE)), lambda theta: theta.sum(), steps=3, tolerance=1e-9)
    assert q.mean.tolist() == [1.0]


def test_many_counts_are_added_exactly():
    q = gamma_poisson(Gamma(1.0, 1.0), torch.tensor([2**24, 1, 2**31]))
    assert q.shape.item() == 2**24 + 2**31 + 2


def test_normal_gamma_far_from_zero():
    numbers = (1e9 + torch.tensor([0.25, -1.5, 2.0, 0.5], dtype=DOUBLE)).tolist()
    q = normal_gamma(NormalGamma(1e9 + 1.0, 2.0, 3.0, 0.5), torch.tensor(numbers, dtype=DOUBLE))
    y, n, prior = [Fraction(number) for number in numbers], 4, Fraction(10**9 + 1)
    mean = sum(y) / n
    rate = (
        Fraction(1, 2)
        + sum((number - mean) ** 2 for number in y) / 2
        + Fraction(2 * n, n + 2) * (mean - prior) ** 2 / 2
    )
    assert q.rate.item() == pytest.approx(float(rate), rel=1e-14)
    assert q.location.item() == pytest.approx(float((2 * prior + n * mean) / (n + 2)), rel=1e-15)
    assert (q.strength.item(), q.shape.item()) == (6.0, 5.0)


@pytest.mark.parametrize("numbers", [[], [1.0, torch.nan]], ids=["none", "NaN"])
def test_normal_gamma_needs_numbers(numbers):
    with pytest.raises(InvalidInput, match="numbers: expected at least one"):
        normal_gamma(NormalGamma(0.0, 1.0, 1.0, 1.0), torch.tensor(numbers))


def test_statistics_of_another_shape_are_refused():
    with pytest.raises(InvalidInput, match="a block that fits"):
        beta_bernoulli(Beta(1.0, 1.0), torch.tensor([[1, 0], [1, 1]]))


def test_a_covariance_that_is_not_symmetric_is_refused():
    eye = torch.eye(2, dtype=DOUBLE)
    skewed = torch.tensor([[1.0, 0.5], [0.0, 1.0]], dtype=DOUBLE)
    model = LinearStateSpace(eye, skewed, eye, eye, torch.zeros(2, dtype=DOUBLE), eye)
    with pytest.raises(InvalidInput, match="transition_noise: expected a symmetric matrix"):
        kalman_filter(model, torch.zeros(3, 2, dtype=DOUBLE))
