"""Gaussian mixtures: beside scikit-learn and scipy, streams and minibatches, empty components, bad input."""

import warnings

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import BayesianGaussianMixture
from sklearn.mixture import GaussianMixture as TheirMixture

from posterity.errors import InvalidInput
from posterity.models import GaussianMixture

RNG = np.random.default_rng(0)
X = RNG.normal(size=(180, 2)) + np.repeat([[0, 0], [5, 5], [5, -5]], 60, axis=0)


def fitted(**options):
    return GaussianMixture(3, random_state=0, **options).fit(X)


def test_em_rests_where_scikit_learn_rests():
    ours = fitted(method="em", reg_covar=0.0, tol=1e-12)
    theirs = TheirMixture(
        3, reg_covar=0, weights_init=ours.weights_, means_init=ours.means_,
        precisions_init=np.linalg.inv(ours.covariances_), max_iter=2, tol=10.0,
    ).fit(X)  # fmt: skip
    np.testing.assert_allclose(ours.means_, theirs.means_, atol=1e-9)
    np.testing.assert_allclose(ours.covariances_, theirs.covariances_, atol=1e-9)
    np.testing.assert_allclose(ours.score_samples(X), theirs.score_samples(X), atol=1e-9)
    assert ours.lower_bounds_[-1] == pytest.approx(len(X) * theirs.score(X), rel=1e-10)


def test_vmp_agrees_with_scikit_learn_at_the_same_prior():
    ours = fitted(tol=1e-10, reg_covar=0.0)
    theirs = BayesianGaussianMixture(
        n_components=3, weight_concentration_prior_type="dirichlet_distribution", weight_concentration_prior=1 / 3,
        mean_precision_prior=1.0, degrees_of_freedom_prior=2.0, covariance_prior=np.cov(X.T, bias=True),
        reg_covar=0, tol=1e-12, max_iter=2000, random_state=0,
    ).fit(X)  # fmt: skip
    order, their_order = np.argsort(ours.means_.sum(-1)), np.argsort(theirs.means_.sum(-1))
    np.testing.assert_allclose(ours.means_[order], theirs.means_[their_order], atol=1e-6)
    np.testing.assert_allclose(ours.covariances_[order], theirs.covariances_[their_order], atol=1e-6)
    np.testing.assert_allclose(ours.weights_[order], theirs.weights_[their_order], atol=1e-8)
    assert (ours.predict(X) == order[np.argsort(their_order)][theirs.predict(X)]).all()


def test_the_predictive_is_a_mixture_of_students():
    ours = fitted()
    q, d = ours.posterior_["components"], 2
    densities = [
        stats.multivariate_t(
            q.location[k].numpy(),
            np.linalg.inv(q.scale[k].numpy()) * float((q.strength[k] + 1) / (q.strength[k] * (q.degrees[k] - d + 1))),
            df=float(q.degrees[k] - d + 1),
        ).logpdf(X)
        for k in range(3)
    ]
    expected = np.logaddexp.reduce(np.stack(densities, -1) + np.log(ours.weights_), -1)
    np.testing.assert_allclose(ours.score_samples(X), expected, rtol=1e-9)


@pytest.mark.parametrize("method", ["em", "vmp"])
def test_samples_have_the_moments_of_the_data(method):
    rows, labels = fitted(method=method).sample(20_000)
    assert np.abs(rows.mean(0) - X.mean(0)).max() < 0.2
    assert np.abs(np.cov(rows.T) - np.cov(X.T)).max() < 1.0
    assert np.bincount(labels, minlength=3) / 20_000 == pytest.approx(1 / 3, abs=0.05)


def test_minibatches_come_near_all_rows():
    exact, stream = fitted(), GaussianMixture(3, method="svi", random_state=0)
    shuffled = np.random.default_rng(1).permutation(X)
    for _ in range(10):
        for batch in np.split(shuffled, 6):
            stream.partial_fit(batch, total_samples=len(X))
    near = np.linalg.norm(stream.means_[:, None] - exact.means_, axis=-1).min(0)
    assert near.max() < 0.5
    assert stream.posterior_["weights"].concentration.sum() == pytest.approx(1.0 + len(X), rel=0.05)


def test_news_add_to_what_is_known():
    stream = GaussianMixture(3, random_state=0)
    shuffled = np.random.default_rng(1).permutation(X)
    for batch in np.split(shuffled, 3):
        stream.partial_fit(batch)
    assert stream.posterior_["weights"].concentration.sum() == pytest.approx(1.0 + len(X))
    near = np.linalg.norm(stream.means_[:, None] - fitted().means_, axis=-1).min(0)
    assert near.max() < 0.3


def test_one_component_is_conjugate_bayes():
    ours = GaussianMixture(1).fit(X)
    q, n, mean = ours.posterior_["components"], len(X), X.mean(0)
    np.testing.assert_allclose(ours.means_[0], mean, rtol=1e-10)
    assert q.strength[0] == pytest.approx(n + 1)
    spread = np.cov(X.T, bias=True)
    np.testing.assert_allclose(np.linalg.inv(q.scale[0].numpy()), (n + 1) * spread, rtol=1e-5)


def test_torch_and_numpy_are_the_same_and_far_data_keep_their_digits():
    near, tensors = fitted(), GaussianMixture(3, random_state=0).fit(torch.as_tensor(X))
    np.testing.assert_array_equal(near.means_, tensors.means_)
    far = GaussianMixture(3, random_state=0).fit(X + 1e6)
    np.testing.assert_allclose(far.means_ - 1e6, near.means_, atol=1e-6)
    np.testing.assert_allclose(far.covariances_, near.covariances_, atol=1e-6)


def test_an_empty_component_is_reported_and_finite():
    rows = np.repeat([[0.0, 0.0], [1.0, 1.0]], 20, axis=0)
    with pytest.warns(ConvergenceWarning, match="hold no observation"):
        ours = GaussianMixture(4, method="em", random_state=0, max_iter=50).fit(rows)
    assert ours.empty_.sum() >= 1
    assert np.isfinite(ours.means_).all()
    assert np.isfinite(ours.score_samples(rows)).all()


@pytest.mark.parametrize("method", ["em", "vmp"])
def test_bounds_never_fall(method):
    bounds = np.array(fitted(method=method, tol=1e-9).lower_bounds_)
    assert (np.diff(bounds) >= -1e-9).all()


def test_bad_input_is_refused():
    with pytest.raises(InvalidInput, match=r"n_components: expected a whole number >= 1, got 2\.0"):
        GaussianMixture(2.0).fit(X)
    with pytest.raises(InvalidInput, match=r"covariance_prior: expected shape \(2, 2\), got \(3, 3\)"):
        GaussianMixture(2, covariance_prior=np.eye(3)).fit(X)
    with pytest.raises(InvalidInput, match="at least 5, as many as components"):
        GaussianMixture(5).fit(X[:3])
    with pytest.raises(ValueError, match="NaN"):
        GaussianMixture(2).fit(np.where(X > 4, np.nan, X))
    with pytest.raises(InvalidInput, match=r"degrees: expected values in the open interval \(1, inf\)"):
        GaussianMixture(2, degrees=0.5).fit(X)
    with pytest.raises(InvalidInput, match="strength"):
        GaussianMixture(2, mean_strength=0.0).fit(X)
    with pytest.raises(InvalidInput, match="concentration"):
        GaussianMixture(2, weight_concentration=-1.0).fit(X)
    with pytest.raises(InvalidInput, match="method"):
        GaussianMixture(2, method="vb").fit(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not hasattr(GaussianMixture(2, method="em"), "partial_fit")
