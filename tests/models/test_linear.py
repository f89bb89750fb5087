"""Linear models: beside scikit-learn's ridge and scipy's optimum; predictive spread against samples; streams."""

import numpy as np
import pytest
import torch
from scipy import optimize
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression, Ridge

from posterity.errors import InvalidInput, Undefined
from posterity.models import BayesianLogisticRegression, BayesianPoissonRegression, BayesianRidge

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 3))
F = X @ [1.0, -0.5, 0.0] + 0.7
Y = F + 0.3 * RNG.normal(size=120)
COUNTS = RNG.poisson(np.exp(0.7 * F))
LABELS = np.where(RNG.random(120) < 1 / (1 + np.exp(-2 * F)), "yes", "no")


def test_ridge_is_ridge_at_the_expected_precisions():
    ours = BayesianRidge(tol=1e-12).fit(X, Y)
    strength = ours.posterior_["alpha"].mean / ours.posterior_["noise"].mean
    theirs = Ridge(float(strength), solver="cholesky").fit(X, Y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-6)
    assert ours.intercept_ == pytest.approx(theirs.intercept_, rel=1e-6)
    assert (np.diff(ours.lower_bounds_) >= -1e-9 * np.abs(ours.lower_bounds_[1:])).all()


@pytest.mark.parametrize("relevance", [False, True])
@pytest.mark.parametrize("unit", [1e-8, 1e-4, 1e6])
def test_ridge_does_not_depend_on_units(relevance, unit):
    y = X @ [1.0, -2.0, 0.0] + 3.0 + RNG.normal(size=len(X))
    plain = BayesianRidge(relevance=relevance).fit(X, y)
    mean, std = plain.predict(X, return_std=True)
    of_targets = BayesianRidge(relevance=relevance).fit(X, unit * y)
    np.testing.assert_allclose(of_targets.coef_ / unit, plain.coef_, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(np.stack(of_targets.predict(X, return_std=True)) / unit, (mean, std), rtol=1e-3)
    of_inputs = BayesianRidge(relevance=relevance).fit(unit * X, y)
    np.testing.assert_allclose(of_inputs.coef_ * unit, plain.coef_, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(of_inputs.predict(unit * X, return_std=True), (mean, std), rtol=1e-3)


def test_ridge_knows_its_noise_and_what_matters():
    ours = BayesianRidge(relevance=True).fit(X, Y)
    assert ours.posterior_["noise"].mean.item() ** -0.5 == pytest.approx(0.3, rel=0.15)
    assert ours.posterior_["alpha"].mean.argmax() == 2  # the weight that is zero
    mean, std = ours.predict(X, return_std=True)
    assert np.mean(np.abs(Y - mean) < 1.96 * std) == pytest.approx(0.95, abs=0.04)


@pytest.mark.parametrize(
    ("model", "y"), [(BayesianRidge(), Y), (BayesianPoissonRegression(), COUNTS)], ids=["ridge", "poisson"]
)
def test_predictive_moments_are_those_of_samples(model, y):
    mean, std = model.fit(X, y).predict(X[:5], return_std=True)
    draws = model.sample(X[:5], 100_000)
    np.testing.assert_allclose(draws.mean(0), mean, rtol=0.03)
    np.testing.assert_allclose(draws.std(0), std, rtol=0.03)


def test_random_states_are_those_of_scikit_learn():
    model = BayesianRidge().fit(X, Y)
    np.testing.assert_array_equal(model.sample(X, 2, np.int64(3)), model.sample(X, 2, 3))
    twice = (model.sample(X, 2, np.random.RandomState(3)) for _ in range(2))
    np.testing.assert_array_equal(*twice)
    assert not np.array_equal(model.sample(X, 2, None), model.sample(X, 2, None))


def test_poisson_is_scipys_optimum():
    """The negative bound in (m, V = LLᵀ), transcribed."""
    ours = BayesianPoissonRegression(prior_precision=2.0, tol=1e-11).fit(X, COUNTS)
    design, lower = np.c_[X, np.ones(120)], np.tril_indices(4)
    prior = np.array([2.0, 2.0, 2.0, 1e-6])

    def negative_bound(flat):
        m, L = torch.as_tensor(flat[:4]), torch.zeros(4, 4).double()
        m = m.requires_grad_()
        triangle = torch.as_tensor(flat[4:]).requires_grad_()
        L = L.index_put((torch.as_tensor(lower[0]), torch.as_tensor(lower[1])), triangle)
        D = torch.as_tensor(design)
        rate = (D @ m + 0.5 * ((D @ L) ** 2).sum(-1)).exp()
        loss = (rate - torch.as_tensor(COUNTS) * (D @ m)).sum()
        loss = loss + 0.5 * torch.as_tensor(prior) @ (m**2 + (L**2).sum(-1)) - L.diagonal().abs().log().sum()
        loss.backward()
        return loss.item(), np.concatenate((m.grad.numpy(), triangle.grad.numpy()))

    start = np.concatenate((ours.posterior_["w"].mean.numpy() + 0.1, 0.2 * np.eye(4)[lower]))
    best = optimize.minimize(negative_bound, start, jac=True, method="BFGS", options={"gtol": 1e-8})
    np.testing.assert_allclose(ours.posterior_["w"].mean.numpy(), best.x[:4], atol=1e-6)


def test_logistic_is_near_penalised_maximum_likelihood_and_wider():
    ours = BayesianLogisticRegression().fit(X, LABELS)
    theirs = LogisticRegression(C=1.0).fit(X, LABELS)
    np.testing.assert_allclose(ours.coef_, theirs.coef_[0], atol=0.15)
    assert ours.classes_.tolist() == ["no", "yes"]
    assert ours.score(X, LABELS) == pytest.approx(theirs.score(X, LABELS), abs=0.02)
    far = 50.0 * X[:10]
    assert (ours.predict_proba(far).max(-1) <= theirs.predict_proba(far).max(-1) + 1e-9).all()
    p, std = ours.predict_proba(X[:5], return_std=True)
    draws = torch.sigmoid(
        ours.posterior_["w"].sample(100_000, torch.Generator().manual_seed(0))
        @ torch.as_tensor(np.c_[X[:5], np.ones(5)]).mT
    )
    np.testing.assert_allclose(p[:, 1], draws.mean(0).numpy(), atol=5e-3)
    np.testing.assert_allclose(std, draws.std(0).numpy(), atol=5e-3)


@pytest.mark.parametrize(
    ("model", "y"),
    [(BayesianRidge, Y), (BayesianPoissonRegression, COUNTS), (BayesianLogisticRegression, LABELS)],
    ids=["ridge", "poisson", "logistic"],
)
def test_streams_end_where_all_rows_do(model, y):
    whole = model().fit(X, y)
    stream = model().partial_fit(X[:60], y[:60]).partial_fit(X[60:], y[60:])
    np.testing.assert_allclose(stream.coef_, whole.coef_, atol=0.05)
    ratio = stream.posterior_["w"].variance / whole.posterior_["w"].variance
    assert ratio.numpy() == pytest.approx(1.0, abs=0.25)


@pytest.mark.parametrize(
    ("model", "y"),
    [(BayesianRidge, Y), (BayesianPoissonRegression, COUNTS), (BayesianLogisticRegression, LABELS)],
    ids=["ridge", "poisson", "logistic"],
)
@pytest.mark.parametrize("stream", [False, True])
def test_inputs_may_stand_far_from_zero(model, y, stream):
    far = X + 1e8 * np.array([1.0, -3.0, 0.0])
    near = far - far[0]  # exactly the same numbers, moved without rounding
    answers = []
    for inputs in (near, far):
        fitted = model(nodes=10) if model is not BayesianRidge else model()
        if stream:
            fitted.partial_fit(inputs[:60], y[:60], total_samples=120).partial_fit(
                inputs[60:], y[60:], total_samples=120
            )
        else:
            fitted.fit(inputs, y)
        predict = fitted.predict_proba if model is BayesianLogisticRegression else fitted.predict
        answers.append((fitted.coef_, *predict(inputs, return_std=True)))
    for close, away in zip(*answers, strict=True):
        np.testing.assert_allclose(away, close, rtol=1e-6, atol=1e-9)
    assert np.abs(answers[0][0][0]) > 0.3  # and not because all is shrunk to zero


def test_ridge_far_from_zero_is_ridge_in_long_doubles():
    inputs, targets = X + 1e6, Y + 1e9
    ours = BayesianRidge(tol=1e-12).fit(inputs, targets)
    strength = (ours.posterior_["alpha"].mean / ours.posterior_["noise"].mean).item()
    design, y = (numbers.astype(np.longdouble) - numbers.astype(np.longdouble).mean(0) for numbers in (inputs, targets))
    theirs = Ridge(strength, solver="cholesky", fit_intercept=False).fit(design.astype(float), y.astype(float))
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-6)
    assert ours.posterior_["w"].mean[-1].item() == pytest.approx(ours.intercept_, rel=1e-12)


@pytest.mark.parametrize("far", [1e7, 1e10])
def test_a_posterior_without_digits_is_refused(far):
    model = BayesianRidge().fit(X + far, Y)
    assert np.isfinite(model.predict(X + far)).all()
    with pytest.raises(Undefined, match="to the last digit"):
        _ = model.posterior_


@pytest.mark.parametrize(("model", "y"), [(BayesianRidge, Y), (BayesianPoissonRegression, COUNTS)])
def test_minibatches_go_on_from_a_fit(model, y):
    whole = model().fit(X, y)
    coefficients = whole.coef_.copy()
    again = whole.partial_fit(X, y, total_samples=120)
    np.testing.assert_allclose(again.coef_, coefficients, atol=1e-3)


def test_a_first_row_alone_says_how_large_targets_are():
    model = BayesianRidge().partial_fit(X[:1], 1e3 * Y[:1]).partial_fit(X[1:], 1e3 * Y[1:])
    np.testing.assert_allclose(model.coef_ / 1e3, [1.0, -0.5, 0.0], atol=0.3)


@pytest.mark.parametrize(
    ("model", "y"),
    [(BayesianRidge(), Y), (BayesianPoissonRegression(), COUNTS), (BayesianLogisticRegression(), LABELS)],
    ids=["ridge", "poisson", "logistic"],
)
def test_a_fit_begins_anew(model, y):
    assert not hasattr(model, "posterior_")
    for _ in range(3):
        model.partial_fit(X, y, total_samples=120)
    again, fresh = (m.fit(X, y).partial_fit(X[:60], y[:60], total_samples=120) for m in (model, clone(model)))
    np.testing.assert_array_equal(again.coef_, fresh.coef_)
    with pytest.raises(NotFittedError, match="not fitted yet"):
        clone(model).posterior_


def test_large_counts_do_not_overflow():
    wild = BayesianPoissonRegression().fit(100.0 * X, RNG.poisson(50.0, 120))
    assert np.isfinite(wild.predict(100.0 * X)).all()
    assert (np.diff(wild.lower_bounds_) >= -1e-6).all()


def test_bad_targets_are_refused():
    with pytest.raises(InvalidInput, match="whole numbers"):
        BayesianPoissonRegression().fit(X, Y)
    with pytest.raises(InvalidInput, match="Only binary classification"):
        BayesianLogisticRegression().fit(X, np.arange(120) % 3)
    with pytest.raises(InvalidInput, match="prior_precision"):
        BayesianLogisticRegression(prior_precision=0.0).fit(X, LABELS)
