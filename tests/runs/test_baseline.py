"""The plain models beside every run, against scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_wine
from sklearn.linear_model import BayesianRidge, LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler

from posterity.runs.baseline import LOGISTIC, RIDGE, baseline, likeliest_ridge, logistic, ridge
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


@pytest.mark.parametrize(("rows", "inputs"), [(200, 10), (50, 80)])
def test_the_ridge_regression_of_the_largest_evidence(rows, inputs):
    draw = np.random.default_rng(0)
    x, noise = draw.normal(size=(rows, inputs)), draw.normal(size=rows)
    y = x @ (draw.normal(size=inputs) * (draw.random(inputs) < 0.3)) + 0.7 * noise + 5
    weights, bias = likeliest_ridge(torch.tensor(x), torch.tensor(y)[:, None])
    vague = dict.fromkeys(("alpha_1", "alpha_2", "lambda_1", "lambda_2"), 0.0)
    reference = BayesianRidge(max_iter=3000, tol=1e-9, **vague).fit(x, y)
    # The ratio of prior and noise is found to a part in 10⁴.
    np.testing.assert_allclose(weights[:, 0], reference.coef_, atol=1e-4)
    np.testing.assert_allclose(bias[0], reference.intercept_, atol=1e-4)


def test_targets_without_noise_or_without_a_pattern_have_a_ridge_regression_too():
    x = torch.randn(30, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    exact, level = likeliest_ridge(x, 2 * x[:, :1] + 1)
    torch.testing.assert_close(exact[:, 0], torch.tensor([2.0, 0.0, 0.0], dtype=torch.float64), atol=1e-6, rtol=0)
    assert level.item() == pytest.approx(1)
    flat, level = likeliest_ridge(x, torch.full((30, 1), 4.0, dtype=torch.float64))
    assert flat.abs().max() == 0
    assert level.item() == 4


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
