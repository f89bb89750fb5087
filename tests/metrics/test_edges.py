"""Metrics at their edges: arrays of any make, rounded probabilities, ties, numbers far from zero, infinite bounds."""

import numpy as np
import pytest
import sklearn.metrics as skm
import torch
from scipy import stats

from posterity import metrics
from posterity.errors import InvalidInput

RNG = np.random.default_rng(0)
PROBS = RNG.dirichlet(np.ones(3), 20)
LABELS = RNG.integers(0, 3, 20)


@pytest.mark.parametrize(
    "probs",
    [
        pytest.param(PROBS[:, ::-1][:, ::-1], id="reversed twice"),
        pytest.param(np.asfortranarray(PROBS), id="fortran"),
        pytest.param(np.broadcast_to(PROBS, PROBS.shape), id="read-only"),
        pytest.param(PROBS.astype(">f8"), id="big-endian"),
        pytest.param(PROBS.astype(np.longdouble), id="long double"),
        pytest.param(PROBS.astype(object), id="objects"),
    ],
)
def test_arrays_of_any_make(probs):
    exact = skm.log_loss(LABELS, PROBS)
    assert metrics.nll(probs, LABELS) == pytest.approx(exact, rel=1e-12)
    assert metrics.nll(probs[::-1], LABELS[::-1]) == pytest.approx(exact, rel=1e-12)
    wrong = PROBS.argmax(-1) != LABELS
    uncertainty = 1.0 - PROBS.max(-1)
    found = metrics.error_auroc(probs[::-1], LABELS[::-1], uncertainty[::-1])
    assert found == pytest.approx(skm.roc_auc_score(wrong, uncertainty))


@pytest.mark.parametrize(
    "values", [np.ones(2, complex), torch.ones(2, dtype=torch.complex64), np.array(["1", "2"]), np.array([{}, {}])]
)
def test_what_is_no_real_number_is_refused(values):
    with pytest.raises(InvalidInput, match="real numbers"):
        metrics.rmse(values, np.ones(2))


def test_probabilities_rounded_past_their_limits():
    beyond = torch.tensor([[1.0 + 1e-7, -1e-7]], dtype=torch.float64)
    assert metrics.nll(beyond, torch.tensor([0])) == 0.0
    assert metrics.nll(beyond, torch.tensor([1])) == np.inf
    assert metrics.nll(beyond[:, 0], torch.tensor([0])) == np.inf


def test_adaptive_ece_does_not_depend_on_the_order_of_ties():
    confidence = torch.tensor([0.8, 0.6], dtype=torch.float64).repeat_interleave(10)
    right = torch.tensor([1] * 8 + [0] * 2 + [1] * 6 + [0] * 4)
    for bins in (2, 3, 5, 20):
        assert metrics.adaptive_ece(confidence, right, bins=bins) == pytest.approx(0.0, abs=1e-12)
    mixed = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    tied = torch.tensor(RNG.random(20).round(1))
    before = metrics.adaptive_ece(tied, right, bins=7)
    assert metrics.adaptive_ece(tied[mixed], right[mixed], bins=7) == pytest.approx(before, abs=1e-12)


@pytest.mark.parametrize("far", [0.0, 1e9, -1e12])
def test_crps_of_draws_far_from_zero(far):
    draws, targets = (np.round(numbers, 2) + far for numbers in (RNG.normal(size=(30, 5)), RNG.normal(size=5)))
    each = [0.5 * stats.energy_distance(x - y, [0.0]) ** 2 for x, y in zip(draws.T, targets, strict=True)]
    assert metrics.crps_samples(draws, targets) == pytest.approx(np.mean(each), rel=1e-9)


def test_intervals_may_be_open_ended():
    lower, upper = np.array([-np.inf, -np.inf, 0.0]), np.array([np.inf, 0.0, np.inf])
    assert metrics.coverage(lower, upper, np.array([5.0, 1.0, 1.0])) == pytest.approx(2 / 3)


def test_counts_must_be_whole():
    for call in (
        lambda: metrics.ece(PROBS, LABELS, bins=2.5),
        lambda: metrics.top_k_accuracy(PROBS, LABELS, k=1.5),
        lambda: metrics.mean_iou(LABELS, LABELS, classes=3.5),
    ):
        with pytest.raises(InvalidInput, match="a whole number >= 1"):
            call()


def test_searching_for_mistakes_where_there_are_none():
    with pytest.raises(InvalidInput, match="0 wrong of 3"):
        metrics.error_auroc(np.eye(3), np.arange(3))
