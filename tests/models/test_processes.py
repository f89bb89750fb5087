"""Gaussian processes: beside scikit-learn; sparse ones with all points are dense; new rows join without retraining."""

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from posterity.errors import InvalidInput
from posterity.models import GaussianProcess, SparseGaussianProcess

RNG = np.random.default_rng(0)
X = np.sort(RNG.uniform(-3, 3, size=(40, 1)), 0)
Y = np.sin(2 * X[:, 0]) + 0.2 * RNG.normal(size=40)
LABELS = np.where(Y > 0, "up", "down")
NEW = np.linspace(-4, 4, 9)[:, None]


def test_the_kernel_is_learnt_as_scikit_learn_learns_it():
    ours = GaussianProcess().fit(X, Y)
    theirs = GaussianProcessRegressor(ConstantKernel(1.0) * RBF(1.0) + WhiteKernel(0.1)).fit(X, Y)
    assert ours.lower_bounds_[-1] == pytest.approx(theirs.log_marginal_likelihood_value_, abs=1e-4)
    mean, std = theirs.predict(NEW, return_std=True)
    found, spread = ours.predict(NEW, return_std=True)
    np.testing.assert_allclose(found, mean, atol=5e-3)
    np.testing.assert_allclose(spread, std, atol=5e-3)


@pytest.mark.parametrize(
    ("likelihood", "y"), [("gaussian", Y), ("bernoulli", LABELS), ("poisson", np.round(np.exp(Y)))]
)
def test_sparse_with_every_point_is_dense(likelihood, y):
    options = {"kernel": RBF(1.0), "likelihood": likelihood, "optimize": False, "tol": 1e-9}
    dense = GaussianProcess(**options).fit(X, y)
    sparse = SparseGaussianProcess(n_inducing=40, **options).fit(X, y)
    np.testing.assert_allclose(dense._outputs(NEW)[0], sparse._outputs(NEW)[0], atol=1e-4)
    np.testing.assert_allclose(dense._outputs(NEW)[1], sparse._outputs(NEW)[1], atol=1e-4)
    assert sparse.lower_bounds_[-1] == pytest.approx(dense.lower_bounds_[-1], abs=1e-3)
    few = SparseGaussianProcess(n_inducing=4, random_state=0, **options).fit(X, y)
    assert few.lower_bounds_[-1] < dense.lower_bounds_[-1] + 1e-9


@pytest.mark.parametrize("model", [GaussianProcess, SparseGaussianProcess])
def test_new_rows_join_without_retraining(model):
    options = {"kernel": RBF(1.0), "likelihood": "bernoulli", "optimize": False, "tol": 1e-10}
    if model is SparseGaussianProcess:
        options["n_inducing"] = 100
    rows = np.arange(40)
    first, second = rows % 2 == 0, rows % 2 == 1
    stream = model(**options).partial_fit(X[first], LABELS[first]).partial_fit(X[second], LABELS[second])
    whole = model(**options).fit(X, LABELS)
    atol = 1e-6 if model is GaussianProcess else 0.05  # the stream's inducing points are those of its first rows
    np.testing.assert_allclose(stream.predict_proba(NEW), whole.predict_proba(NEW), atol=atol)
    assert whole.score(X, LABELS) > 0.9


def test_samples_have_the_predictive_moments():
    ours = GaussianProcess(RBF(1.0), optimize=False).fit(X, Y)
    mean, std = ours.predict(NEW, return_std=True)
    draws = ours.sample(NEW, 50_000)
    np.testing.assert_allclose(draws.mean(0), mean, atol=0.03)
    np.testing.assert_allclose(draws.std(0), std, rtol=0.03)


def test_bounds_never_fall():
    bounds = (
        GaussianProcess(RBF(1.0), likelihood="poisson", optimize=False).fit(X, np.round(5 * np.exp(Y))).lower_bounds_
    )
    assert (np.diff(bounds) >= -1e-8 * np.abs(bounds[1:])).all()


def test_bad_input_is_refused():
    with pytest.raises(InvalidInput, match="likelihood"):
        GaussianProcess(likelihood="student").fit(X, Y)
    with pytest.raises(InvalidInput, match="noise_variance"):
        GaussianProcess(noise_variance=0.0).fit(X, Y)
    with pytest.raises(InvalidInput, match="n_inducing"):
        SparseGaussianProcess(n_inducing=0).fit(X, Y)


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
def test_a_kernel_without_parameters_to_learn_stays(likelihood):
    X, kernel = np.linspace(0.0, 3.0, 12)[:, None], RBF(1.0, "fixed")
    y = (np.sin(2.0 * X[:, 0]) > 0).astype(float)
    model = GaussianProcess(kernel, likelihood=likelihood).fit(X, y)
    assert model.kernel_ == kernel
    assert (model.noise_variance_ == 0.1) == (likelihood == "bernoulli")
