"""Classical models: what the live comparisons of the table do not look at."""

import pytest
import torch
from sklearn.linear_model import BayesianRidge

from posterity.algorithms import (
    LinearStateSpace,
    beta_bernoulli,
    dirichlet_categorical,
    gamma_poisson,
    kalman_filter,
    kalman_smoother,
    laplace,
    linear_regression,
    normal_gamma,
)
from posterity.errors import InvalidInput
from posterity.families import Beta, Dirichlet, Gamma, NormalGamma

DOUBLE = torch.float64


def tensors(*lists) -> list[torch.Tensor]:
    return [torch.tensor(part, dtype=DOUBLE) for part in lists]


def walk(noise: float) -> LinearStateSpace:
    return LinearStateSpace(*tensors([[1.0]], [[noise]], [[1.0]], [[0.5]], [0.0], [[2.0]]))


def test_a_state_that_stands_still_is_a_mean():
    # With hardly any motion, filtering is the posterior of one number after t observations.
    (y,) = tensors([[1.0], [2.0], [0.0], [1.5]])
    states = kalman_filter(walk(1e-6), y).states
    for t in range(1, 5):
        precision = 0.5 + t / 0.5
        assert states.precision[t - 1].item() == pytest.approx(precision, rel=1e-4)
        assert states.mean[t - 1].item() == pytest.approx(y[:t].sum().item() / 0.5 / precision, rel=1e-4)


def test_filter_and_smoother_agree_on_the_last_state_and_the_likelihood():
    y = torch.randn(12, 1, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    filtered, smoothed = kalman_filter(walk(0.3), y), kalman_smoother(walk(0.3), y)
    torch.testing.assert_close(filtered.states.mean[-1], smoothed.states.mean[-1])
    torch.testing.assert_close(filtered.states.covariance[-1], smoothed.states.covariance[-1])
    torch.testing.assert_close(filtered.log_likelihood, smoothed.log_likelihood)
    assert (smoothed.states.variance <= filtered.states.variance + 1e-12).all()


def test_observations_of_another_width_are_refused():
    with pytest.raises(InvalidInput, match=r"observations: expected shape \(5, 1\), got \(5, 2\)"):
        kalman_filter(walk(0.3), torch.zeros(5, 2, dtype=DOUBLE))


@pytest.mark.parametrize("estimate", [kalman_filter, kalman_smoother])
def test_observations_that_are_none_or_nan_are_refused(estimate):
    with pytest.raises(InvalidInput, match="observations: expected at least one"):
        estimate(walk(0.3), torch.zeros(0, 1, dtype=DOUBLE))
    with pytest.raises(InvalidInput, match="observations: expected finite entries"):
        estimate(walk(0.3), torch.full((2, 1), torch.nan, dtype=DOUBLE))


def test_a_model_whose_parts_do_not_fit_is_refused():
    with pytest.raises(InvalidInput, match=r"observation: expected shape \(1, 1\), got \(1, 2\)"):
        LinearStateSpace(*tensors([[1.0]], [[1.0]], [[1.0, 2.0]], [[0.5]], [0.0], [[2.0]]))


def test_noise_that_is_none_is_refused():
    with pytest.raises(InvalidInput, match="transition_noise"):
        kalman_smoother(walk(-1.0), torch.zeros(5, 1, dtype=DOUBLE))


def test_linear_regression_is_bayesian_ridge_at_its_own_precisions():
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(30, 3, dtype=DOUBLE, generator=generator)
    y = X @ torch.tensor([1.0, -0.5, 0.0], dtype=DOUBLE) + 0.3 * torch.randn(30, dtype=DOUBLE, generator=generator)
    theirs = BayesianRidge(fit_intercept=False, tol=1e-12).fit(X.numpy(), y.numpy())
    q = linear_regression(X, y, prior_precision=theirs.lambda_, noise_precision=theirs.alpha_)
    torch.testing.assert_close(q.mean, torch.as_tensor(theirs.coef_), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(q.covariance, torch.as_tensor(theirs.sigma_), rtol=1e-6, atol=1e-8)


def test_laplace_says_when_it_did_not_arrive():
    with pytest.warns(RuntimeWarning, match="after 1 steps"):
        laplace(torch.tensor([3.0], dtype=DOUBLE), lambda theta: theta.cosh().sum(), steps=1)


def test_data_outside_the_model_are_refused():
    with pytest.raises(InvalidInput, match="zeros and ones"):
        beta_bernoulli(Beta(1.0, 1.0), torch.tensor([0.0, 2.0]))
    for counts in (-1.0, 2.5, float("nan")):
        with pytest.raises(InvalidInput, match="counts: expected whole numbers"):
            gamma_poisson(Gamma(1.0, 1.0), torch.tensor([counts]))
    for labels in ([0, 3], [-1, 0], [0.0, 1.0]):
        with pytest.raises(InvalidInput, match=r"labels: expected integers in 0..2"):
            dirichlet_categorical(Dirichlet([1.0, 1.0, 1.0]), torch.tensor(labels))
    with pytest.raises(InvalidInput, match="at least one example"):
        linear_regression(torch.zeros(0, 2), torch.zeros(0))


def test_whole_numbers_are_numbers():
    """Integers and booleans give what the same numbers in floating point give (½ and ¼ are not rounded away)."""
    y = torch.tensor([0, 1, 1])
    pairs = [
        (beta_bernoulli(Beta(1.0, 1.0), data), beta_bernoulli(Beta(1.0, 1.0), y.double())) for data in (y, y.bool())
    ]
    pairs.append((gamma_poisson(Gamma(1.0, 1.0), y), gamma_poisson(Gamma(1.0, 1.0), y.double())))
    prior = NormalGamma(0.0, 1.0, 1.0, 1.0)
    pairs.append((normal_gamma(prior, y), normal_gamma(prior, y.double())))
    for whole, floating in pairs:
        assert whole.natural == floating.natural
    assert normal_gamma(prior, y).shape == 1.0 + 3 / 2
