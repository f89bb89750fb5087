"""Perceptrons with posteriors: they learn, say how sure they are, and learn more."""

import numpy as np
import pytest

from posterity.errors import InvalidInput
from posterity.models import BayesianMLPClassifier, BayesianMLPRegressor
from posterity.posterior import Posterior

RNG = np.random.default_rng(0)
X = RNG.normal(size=(150, 2))


def test_classes():
    labels = np.where(X[:, 0] * X[:, 1] > 0, "same", "other")
    model = BayesianMLPClassifier((16,), epochs=60, samples=16, random_state=0).fit(X[:100], labels[:100])
    assert isinstance(model.posterior_, Posterior)
    assert model.score(X[:100], labels[:100]) > 0.9
    np.testing.assert_allclose(model.predict_proba(X).sum(-1), 1.0, atol=1e-5)
    assert model.n_iter_ == 60
    longer = BayesianMLPClassifier((16,), epochs=120, random_state=0).fit(X[:100], labels[:100])
    assert model.lower_bounds_[-1] < longer.lower_bounds_[-1] < 0.0
    drawn = model.sample(X, 400)
    assert drawn.shape == (400, 150)
    np.testing.assert_allclose((drawn == "same").mean(0), model.predict_proba(X)[:, 1], atol=0.2)
    model.partial_fit(X[100:], labels[100:])
    assert model.score(X, labels) > 0.85
    with pytest.raises(InvalidInput, match="classes among"):
        model.partial_fit(X[:2], ["third", "same"])


def test_numbers():
    y = 10.0 + 5.0 * np.sin(X[:, 0]) + 0.5 * RNG.normal(size=150)
    model = BayesianMLPRegressor((16,), epochs=60, samples=16, random_state=0).fit(X, y)
    std = model.predict(X, return_std=True)[1]
    assert model.score(X, y) > 0.9
    assert (std > 0.2).all()
    np.testing.assert_allclose(model.sample(X, 400).std(0), std, rtol=0.25)
    far = model.predict(10.0 * X[:20], return_std=True)[1]
    assert far.mean() > std.mean()


def test_units_do_not_matter_and_a_constant_column_may_change():
    y = np.sin(X[:, 0])
    model = BayesianMLPRegressor((16,), epochs=60, samples=16, random_state=0)
    fits = [model.fit(X * unit, y * unit).predict(X * unit) / unit for unit in (1.0, 1e-9)]
    np.testing.assert_allclose(fits[1], fits[0], atol=1e-3)
    model.fit(np.c_[X, np.full(150, 0.1)], y)
    assert np.abs(model.predict(np.c_[X, np.full(150, 0.2)])).max() < 5.0


def test_one_hidden_layer_may_be_a_number():
    one, several = (BayesianMLPRegressor(hidden, epochs=2, random_state=0).fit(X, X[:, 0]) for hidden in (4, (4,)))
    np.testing.assert_array_equal(one.predict(X), several.predict(X))
    drawn = one.sample(X, 2, np.random.RandomState(1)), one.sample(X, 2, np.random.RandomState(1))
    np.testing.assert_array_equal(*drawn)
