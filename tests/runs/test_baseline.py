"""The plain models beside every run, against scikit-learn."""

import numpy as np
import torch
from sklearn.datasets import load_diabetes, load_wine
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler

from posterity.runs.baseline import LOGISTIC, RIDGE, baseline, logistic, ridge
from posterity.runs.preprocessing import Examples
from posterity.runs.targets import Amount, Classes, Count


def test_logistic_regression():
    x, y = load_wine(return_X_y=True)
    x = StandardScaler().fit_transform(x)
    weights, bias = logistic(torch.tensor(x), torch.tensor(y), 3)
    reference = LogisticRegression(C=1.0, tol=1e-10, max_iter=1000).fit(x, y)
    ours = (torch.tensor(x) @ weights + bias).softmax(-1)
    # A gradient of at most 1e-6 for each example, against curvature of at least 1/N from the prior.
    np.testing.assert_allclose(ours, reference.predict_proba(x), atol=1e-3)


def test_ridge_regression():
    x, y = load_diabetes(return_X_y=True, scaled=False)
    weights, bias = ridge(torch.tensor(x), torch.tensor(y)[:, None])
    reference = Ridge(alpha=1.0).fit(x, y)
    np.testing.assert_allclose(weights[:, 0], reference.coef_, rtol=1e-8)
    np.testing.assert_allclose(bias[0], reference.intercept_, rtol=1e-8)


def test_what_is_scored():
    examples = Examples(torch.randn(30, 2), torch.arange(30) % 2, torch.arange(30))
    found = baseline(examples, examples, Classes("y", ("a", "b")))[LOGISTIC]
    assert set(found) == {"accuracy", "nll", "ece"}
    amounts = examples._replace(targets=3 * examples.inputs[:, :1])
    assert baseline(amounts, amounts, Amount("y", 0.0, 2.0))[RIDGE]["rmse"] < 0.5
    assert baseline(amounts, amounts, Count("y")) == baseline(amounts, None, Count("y")) == {}


def test_long_tables_are_thinned_and_say_so(monkeypatch):
    monkeypatch.setattr("posterity.runs.baseline.ENOUGH", 40)
    x, y = load_wine(return_X_y=True)
    examples = Examples(torch.tensor(StandardScaler().fit_transform(x)), torch.tensor(y), torch.arange(len(y)))
    found = baseline(examples, examples, Classes("y", ("a", "b", "c")))
    some = examples._replace(inputs=examples.inputs[::5], targets=examples.targets[::5])
    expected = baseline(some, examples, Classes("y", ("a", "b", "c")))[LOGISTIC]
    assert found == {f"{LOGISTIC} of 36 training rows": expected}
