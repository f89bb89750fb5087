"""Every estimator passes scikit-learn's own checks, but for those listed with a reason."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from posterity import models

EXPECTED_FAILURES: dict[str, dict[str, str]] = {}

ESTIMATORS = [
    models.GaussianMixture(method="em"),
    models.GaussianMixture(method="vmp"),
    models.GaussianMixture(method="svi", max_iter=20),
]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(
    ESTIMATORS, expected_failed_checks=lambda estimator: EXPECTED_FAILURES.get(type(estimator).__name__, {})
)
def test_scikit_learn_estimator(estimator, check):
    check(estimator)
