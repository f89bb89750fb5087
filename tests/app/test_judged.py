"""Figures, intervals and classes of a report, beside scikit-learn and statsmodels."""

import numpy as np
import pytest
import sklearn.metrics as skm
from statsmodels.stats.proportion import proportion_confint

from posterity.app.judged import amount_figures, by_class, class_figures, confused, confusion, wilson

RNG = np.random.default_rng(0)
PROBS, TARGETS, NAMES = RNG.dirichlet(np.ones(3), 80), RNG.integers(0, 3, 80), ["a", "b", "c"]


def test_intervals_of_shares():
    hits, counts = np.array([0.0, 3, 9, 10]), np.array([10.0, 10, 10, 10])
    wanted = proportion_confint(hits, counts, alpha=0.1, method="wilson")
    np.testing.assert_allclose(wilson(hits, counts), wanted, atol=1e-4)


def test_classes_as_scikit_learn_counts_them():
    said = PROBS.argmax(1)
    np.testing.assert_array_equal(confusion(PROBS, TARGETS, NAMES), skm.confusion_matrix(TARGETS, said))
    table = by_class(PROBS, TARGETS, NAMES)
    np.testing.assert_allclose(table["recall"].astype(float), skm.recall_score(TARGETS, said, average=None), rtol=1e-3)
    precision = skm.precision_score(TARGETS, said, average=None)
    np.testing.assert_allclose(table["precision"].astype(float), precision, rtol=1e-3)
    worst = confused(PROBS, TARGETS, NAMES)
    assert worst["rows"].is_monotonic_decreasing
    assert worst["rows"].sum() == (said != TARGETS).sum()


def test_a_class_that_is_never_said_has_no_precision():
    probs = np.tile([0.6, 0.4, 0.0], (10, 1))
    table = by_class(probs, np.arange(10) % 2, NAMES)
    assert table["precision"].tolist() == ["0.5", "", ""]
    assert table["recall"].tolist() == ["1", "0", ""]


@pytest.mark.parametrize("classes", [True, False])
def test_every_figure_lies_in_its_interval(classes):
    if classes:
        table = class_figures(PROBS, TARGETS)
        assert float(table.loc["accuracy", "value"]) == pytest.approx(
            skm.accuracy_score(TARGETS, PROBS.argmax(1)), rel=1e-3
        )
    else:
        mean, std = RNG.normal(size=60), RNG.uniform(0.5, 2, 60)
        targets = mean + std * RNG.normal(size=60)
        table = amount_figures(mean, std, targets)
        wanted = skm.root_mean_squared_error(targets, mean)
        assert float(table.loc["RMSE", "value"]) == pytest.approx(wanted, rel=1e-3)
    for name, row in table.drop(index="calibration error", errors="ignore").iterrows():
        low, high = map(float, row["90 % interval"].split(" to "))
        assert low < float(row["value"]) < high, name


def test_the_interval_of_the_calibration_error_is_not_inflated_twice():
    """Of calibrated predictions the error is that of chance alone, so intervals should reach down to nearly zero."""
    confidence = np.random.default_rng(1).uniform(0.5, 1, 100)
    right = np.random.default_rng(2).random(100) < confidence
    probs = np.stack([confidence, 1 - confidence], 1)
    row = class_figures(probs, (~right).astype(int)).loc["calibration error"]
    low, high = map(float, row["90 % interval"].split(" to "))
    assert low < 0.5 * float(row["value"]) < high
