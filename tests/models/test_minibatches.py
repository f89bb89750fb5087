"""Minibatches that stand for more rows, sparse counts, outliers, and what is said without scikit-learn."""

import importlib.util
import sys

import numpy as np
import pytest
from scipy import sparse
from sklearn.gaussian_process.kernels import RBF

from posterity.errors import MissingExtra
from posterity.models import (
    BayesianLogisticRegression,
    BayesianPoissonRegression,
    BayesianRidge,
    GaussianProcess,
    LatentDirichletAllocation,
)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(600, 2))
OUTPUT = X @ np.array([1.0, -0.5]) + 0.3
CASES = {
    "ridge": (BayesianRidge(), OUTPUT + 0.2 * RNG.normal(size=600)),
    "poisson": (BayesianPoissonRegression(nodes=10), RNG.poisson(np.exp(OUTPUT))),
    "logistic": (BayesianLogisticRegression(nodes=10), (OUTPUT + RNG.logistic(size=600) > 0).astype(int)),
}


@pytest.mark.parametrize("name", CASES)
def test_minibatches_approach_the_posterior_of_all_rows(name):
    model, y = CASES[name]
    whole = type(model)(**model.get_params()).fit(X, y)
    stream = type(model)(**model.get_params())
    for _ in range(8):
        for rows in RNG.permutation(600).reshape(6, 100):
            stream.partial_fit(X[rows], y[rows], total_samples=600)
    assert stream.n_batches_ == 48
    found, exact = stream.posterior_["w"], whole.posterior_["w"]
    spread = exact.covariance.diagonal().sqrt()
    assert ((found.mean - exact.mean).abs() / spread < 1.0).all()
    np.testing.assert_allclose(found.covariance.diagonal(), spread**2, rtol=0.3)


def test_sparse_counts_teach_the_same_topics():
    counts = RNG.poisson(0.4, size=(30, 12))
    options = {"n_components": 3, "max_iter": 2, "random_state": 0}
    for method in ("svi", "vmp"):
        dense = LatentDirichletAllocation(method=method, **options).fit(counts)
        thin = LatentDirichletAllocation(method=method, **options).fit(sparse.csr_array(counts.astype(float)))
        np.testing.assert_allclose(thin.components_, dense.components_)
        np.testing.assert_allclose(thin.transform(sparse.coo_array(counts.astype(float))), dense.transform(counts))
        assert thin.score(sparse.csr_array(counts.astype(float))) == pytest.approx(dense.score(counts))


def test_a_student_t_process_overlooks_outliers():
    x = np.linspace(-2, 2, 25)[:, None]
    y = np.sin(2 * x[:, 0]) + 0.05 * RNG.normal(size=25)
    y[12] += 8.0
    options = {"kernel": RBF(0.7), "optimize": False, "noise_variance": 0.01}
    robust = GaussianProcess(likelihood="student_t", **options).fit(x, y)
    plain = GaussianProcess(**options).fit(x, y)
    truth = np.sin(2 * x[:, 0])
    mean, std = robust.predict(x, return_std=True)
    assert np.abs(mean - truth).max() < 0.2 < np.abs(plain.predict(x) - truth).max()
    assert (std > 0.1 * np.sqrt(2)).all()  # a Student-t of four degrees has twice the variance of its scale
    assert np.all(np.diff(robust.lower_bounds_) > -1e-8)


def test_without_scikit_learn_the_extra_is_named(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "sklearn" else found(name))
    for name in [name for name in sys.modules if name.startswith("posterity.models")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtra, match="needs scikit-learn"):
        importlib.import_module("posterity.models")
