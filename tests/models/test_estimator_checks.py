"""Every estimator passes scikit-learn's own checks, but for those listed with a reason."""

import pytest
from sklearn.gaussian_process.kernels import RBF
from sklearn.utils.estimator_checks import check_classifiers_train, check_regressors_train, parametrize_with_checks

from posterity import models

COUNTS = "targets must be counts, and the check brings others"
ONE_TOPIC = "the check asks for a single topic, which leaves no proportions to learn"
NOT_COUNTS = [
    "check_n_features_in_after_fitting",
    "check_regressors_train",
    "check_regressor_data_not_an_array",
    "check_fit_idempotent",
    "check_regressors_no_decision_function",
    "check_fit_check_is_fitted",
    "check_n_features_in",
]
NO_PROPORTIONS = [
    "check_dont_overwrite_parameters",
    "check_methods_sample_order_invariance",
    "check_methods_subset_invariance",
    "check_fit2d_1sample",
    "check_fit2d_1feature",
    "check_fit2d_predict1d",
]
BRIEF = "trained for one epoch here, which is too short to learn; held to the check below with more"
EXPECTED_FAILURES = {
    "BayesianMLPClassifier": {"check_classifiers_train": BRIEF},
    "BayesianMLPRegressor": {"check_regressors_train": BRIEF},
    "BayesianPoissonRegression": dict.fromkeys(NOT_COUNTS, COUNTS),
    "LatentDirichletAllocation": dict.fromkeys(NO_PROPORTIONS, ONE_TOPIC),
}

ESTIMATORS = [
    models.GaussianMixture(method="em", max_iter=20),
    models.GaussianMixture(method="vmp", max_iter=20),
    models.GaussianMixture(method="svi", max_iter=5),
    models.LatentDirichletAllocation(2, max_iter=1, max_doc_iter=5),
    models.BayesianRidge(max_iter=50),
    models.BayesianPoissonRegression(nodes=10, tol=1e-3),
    models.BayesianLogisticRegression(nodes=10, tol=1e-3),
    models.FactorAnalysis(tol=1e-3),
    models.GaussianProcess(optimize=False, nodes=10),
    models.GaussianProcess(likelihood="bernoulli", optimize=False, nodes=10, tol=1e-3),
    models.SparseGaussianProcess(RBF(5.0), optimize=False, nodes=10),
    models.BayesianMLPClassifier((3,), epochs=1, samples=2, random_state=0),
    models.BayesianMLPRegressor((3,), epochs=1, samples=2, random_state=0),
]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(
    ESTIMATORS, expected_failed_checks=lambda estimator: EXPECTED_FAILURES.get(type(estimator).__name__, {})
)
def test_scikit_learn_estimator(estimator, check):
    check(estimator)


def test_perceptrons_learn_what_the_checks_ask_for():
    options = {"epochs": 50, "batch_size": 32, "samples": 8, "random_state": 0}
    check_classifiers_train("BayesianMLPClassifier", models.BayesianMLPClassifier((16,), **options))
    check_regressors_train("BayesianMLPRegressor", models.BayesianMLPRegressor((16,), **options))
