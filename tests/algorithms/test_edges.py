"""Algorithms at their edges: huge and tiny gradients, single precision, data far from zero, batches of starts."""

from fractions import Fraction

import numpy as np
import pytest
import scipy.stats
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
from posterity.graph import filter_states

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


def test_starts_are_numbers():
    at_three = torch.full((2,), 3.0, dtype=DOUBLE)
    for start in ([0, 0], np.zeros(2)):
        torch.testing.assert_close(newton().run(start, lambda theta: ((theta - 3.0) ** 2).sum(), 1).mean, at_three)
    with pytest.raises(InvalidInput, match="θ: expected at least 1 axes"):
        newton().run(torch.tensor(0.0), lambda theta: theta**2, 1)
    for prior, family in ((Beta(1.0, 1.0), beta_bernoulli), (Gamma(1.0, 1.0), gamma_poisson)):
        for seen in ([0, 1, 1], np.array([0, 1, 1]), torch.tensor([False, True, True])):
            assert family(prior, seen).natural[0].item() == 2.0


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


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        ([[1.0, 0.5], [0.0, 1.0]], "transition_noise: expected a symmetric matrix, .* by 0.5"),
        ([[1.0, 2.0], [2.0, 1.0]], "transition_noise: expected a covariance, got 'smallest eigenvalue -1'"),
        ([[torch.nan, 0.0], [0.0, 1.0]], "transition_noise: expected finite entries"),
        ([1.0, 1.0], r"transition_noise: expected shape \(2, 2\), got \(2,\)"),
    ],
)
def test_what_is_no_covariance_is_refused(noise, message):
    eye = torch.eye(2, dtype=DOUBLE)
    with pytest.raises(InvalidInput, match=message):
        LinearStateSpace(eye, torch.tensor(noise, dtype=DOUBLE), eye, eye, eye[0], eye)


def test_state_spaces_of_numpy():
    one, start = np.eye(2), np.zeros(2)
    ours = LinearStateSpace(0.9 * one, one, one, one, start, one)
    eye = torch.eye(2, dtype=DOUBLE)
    tensors = LinearStateSpace(0.9 * eye, eye, eye, eye, torch.zeros(2, dtype=DOUBLE), eye)
    seen = torch.arange(6, dtype=DOUBLE).reshape(3, 2)
    assert kalman_filter(ours, seen).log_likelihood == kalman_filter(tensors, seen).log_likelihood
    assert filter_states(ours, seen.numpy()).log_likelihood == filter_states(tensors, seen).log_likelihood


@pytest.mark.parametrize("listed", [False, True], ids=["integers", "lists"])
def test_state_spaces_of_python_numbers_are_double(listed):
    move, noise = ([[0.9]], [[0.3]]) if listed else (torch.tensor([[2]]), torch.tensor([[3]]))
    model, seen = LinearStateSpace(move, noise, [[1]], [[2]], [0], [[1]]), np.array([1.1, 3.3])
    a, q = np.asarray(move, dtype=float).item(), np.asarray(noise, dtype=float).item()
    covariance = np.array([[1.0, a], [a, a * a + q]]) + 2.0 * np.eye(2)
    wanted = scipy.stats.multivariate_normal([0.0, 0.0], covariance).logpdf(seen)
    for column in (torch.as_tensor(seen).unsqueeze(-1), seen.reshape(-1, 1).tolist()):
        assert float(kalman_filter(model, column).log_likelihood) == pytest.approx(wanted, rel=1e-13)
        assert float(filter_states(model, column).log_likelihood) == pytest.approx(wanted, rel=1e-13)


@pytest.mark.parametrize("numbers", [[0.1, 0.2, 0.7], np.array([0.7, 0.2, 0.1])[::-1]], ids=["list", "backwards"])
def test_lists_and_arrays_keep_their_digits(numbers):
    q = normal_gamma(NormalGamma(0.0, 1.0, 1.0, 1.0), numbers)
    assert float(q.location) == pytest.approx(sum(numbers) / 4, rel=1e-15)
    assert float(q.rate) == pytest.approx(1.0 + 0.5 * (np.square(numbers).sum() - sum(numbers) ** 2 / 4), rel=1e-14)
