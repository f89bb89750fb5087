"""Every metric against torchmetrics, scikit-learn, scipy or the integral that defines it."""

import numpy as np
import pytest
import sklearn.calibration as skc
import sklearn.metrics as skm
import torch
import torchmetrics.functional as tm
from scipy import integrate, stats
from torch.nn import GaussianNLLLoss
from torchmetrics.functional.regression import continuous_ranked_probability_score

from posterity import metrics
from posterity.errors import InvalidInput
from posterity.metrics.intervals import student_quantile

TOLERANCE = 1e-6


@pytest.fixture
def task():
    """Probabilities of 7 classes that are right about half of the time, and their labels."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(450, 7, generator=generator, dtype=torch.float64)
    labels = torch.multinomial((0.7 * logits).softmax(-1), 1, generator=generator).squeeze(-1)
    return logits.softmax(-1), labels


@pytest.fixture
def scores():
    """Scores with many ties, and which of them are positive."""
    generator = np.random.default_rng(1)
    positive = generator.random(500) < 0.3
    return (generator.normal(size=500) + positive).round(1), positive


def test_accuracy(task):
    p, y = task
    assert metrics.accuracy(p, y) == pytest.approx(skm.accuracy_score(y, p.argmax(-1)), abs=TOLERANCE)
    for k in (1, 3, 6):
        reference = skm.top_k_accuracy_score(y, p, k=k)
        assert metrics.top_k_accuracy(p, y, k=k) == pytest.approx(reference, abs=TOLERANCE)


def test_balanced_accuracy(task):
    p, y = task
    kept = (y != 3) & ((y != 5) | (torch.arange(len(y)) % 7 == 0))  # one class is missing, another rare
    reference = skm.recall_score(y[kept], p[kept].argmax(-1), average="macro", labels=y[kept].unique())
    assert metrics.balanced_accuracy(p[kept], y[kept]) == pytest.approx(reference, abs=TOLERANCE)


def test_undecided_predictions_are_not_counted_as_right():
    uniform = torch.full((10, 5), 0.2)
    labels = torch.arange(10) % 5
    assert metrics.accuracy(uniform, labels) == pytest.approx(0.2)
    assert metrics.top_k_accuracy(uniform, labels, k=2) == pytest.approx(0.4)


def test_nll_and_brier(task):
    p, y = task
    assert metrics.nll(p, y) == pytest.approx(skm.log_loss(y, p), abs=TOLERANCE)
    reference = skm.brier_score_loss(y, p, scale_by_half=False)
    assert metrics.brier(p, y) == pytest.approx(reference, abs=TOLERANCE)


@pytest.mark.parametrize("bins", [10, 15, 20])
def test_ece(task, bins):
    p, y = task
    reference = tm.calibration_error(p, y, task="multiclass", num_classes=7, n_bins=bins).item()
    assert metrics.ece(p, y, bins=bins) == pytest.approx(reference, abs=TOLERANCE)


@pytest.mark.parametrize("bins", [10, 15])
def test_adaptive_ece(task, bins):
    p, y = task
    confidence, guess = p.max(-1)
    right, said = skc.calibration_curve(guess == y, confidence, n_bins=bins, strategy="quantile")
    assert metrics.adaptive_ece(p, y, bins=bins) == pytest.approx(np.abs(right - said).mean(), abs=TOLERANCE)


def test_certain_predictions_fall_in_the_last_bin():
    certain = torch.tensor([[1.0, 0.0], [0.95, 0.05]])
    bins = metrics.calibration_bins(certain, torch.tensor([0, 0]), bins=10)
    assert bins.weight.tolist() == [1.0]
    assert bins.confidence.tolist() == pytest.approx([0.975])


def test_binary_probabilities_are_two_classes(task):
    p = task[0][:, 0]
    y = torch.bernoulli(p, generator=torch.Generator().manual_seed(3))
    assert metrics.nll(p, y) == pytest.approx(skm.log_loss(y, p), abs=TOLERANCE)
    assert metrics.brier(p, y) == pytest.approx(2 * skm.brier_score_loss(y, p), abs=TOLERANCE)
    assert metrics.accuracy(p, y) == pytest.approx(skm.accuracy_score(y, p > 0.5), abs=TOLERANCE)


def test_maps_and_sequences_are_many_examples(task):
    p, y = task
    for metric in (metrics.accuracy, metrics.nll, metrics.brier, metrics.ece, metrics.adaptive_ece):
        assert metric(p.reshape(5, 9, 10, 7), y.reshape(5, 9, 10)) == pytest.approx(metric(p, y))


def test_ignored_positions_do_not_count(task):
    p, y = task
    padded = y.clone()
    padded[::3] = -100
    kept = padded != -100
    for metric in (metrics.accuracy, metrics.nll, metrics.brier, metrics.ece, metrics.adaptive_ece):
        assert metric(p, padded, ignore_index=-100) == pytest.approx(metric(p[kept], y[kept]))


def test_mean_iou(task):
    p, y = task
    guess = p.argmax(-1)
    assert metrics.mean_iou(guess, y, classes=7) == pytest.approx(
        skm.jaccard_score(y, guess, average="macro"), abs=TOLERANCE
    )
    void = torch.where(y == 2, 255, y)
    reference = tm.jaccard_index(guess, void, task="multiclass", num_classes=7, ignore_index=255).item()
    assert metrics.mean_iou(guess, void, classes=7, ignore_index=255) == pytest.approx(reference, abs=TOLERANCE)
    # classes that never occur are left out of the average
    assert metrics.mean_iou(guess, y, classes=20) == metrics.mean_iou(guess, y, classes=7)


def test_auroc(scores):
    values, positive = scores
    assert metrics.auroc(values, positive) == pytest.approx(skm.roc_auc_score(positive, values), abs=TOLERANCE)
    assert metrics.ood_auroc(values[~positive], values[positive]) == pytest.approx(metrics.auroc(values, positive))


def test_fpr95(scores):
    values, positive = scores
    fpr, tpr, _ = skm.roc_curve(positive, values, drop_intermediate=False)
    reference = fpr[np.argmax(tpr >= 0.95)]
    assert metrics.fpr95(values, positive) == pytest.approx(reference, abs=TOLERANCE)
    assert metrics.ood_fpr95(values[~positive], values[positive]) == pytest.approx(reference, abs=TOLERANCE)


def test_wrong_predictions_are_found_by_any_uncertainty(task):
    p, y = task
    wrong = (p.argmax(-1) != y).numpy()
    entropy = stats.entropy(p.numpy(), axis=-1)
    assert metrics.error_auroc(p, y) == pytest.approx(skm.roc_auc_score(wrong, 1 - p.max(-1).values), abs=TOLERANCE)
    assert metrics.error_auroc(p, y, entropy) == pytest.approx(skm.roc_auc_score(wrong, entropy), abs=TOLERANCE)
    fpr, tpr, _ = skm.roc_curve(wrong, entropy, drop_intermediate=False)
    assert metrics.error_fpr95(p, y, entropy) == pytest.approx(fpr[np.argmax(tpr >= 0.95)], abs=TOLERANCE)


def test_risk_coverage_follows_its_definition(scores):
    generator = np.random.default_rng(2)
    uncertainty, loss = generator.random(60), generator.random(60)
    coverage, risk = metrics.risk_coverage(uncertainty, loss)
    expected = [loss[np.argsort(uncertainty)[:n]].mean() for n in range(1, 61)]
    np.testing.assert_allclose(risk, expected, atol=1e-12)
    np.testing.assert_allclose(coverage, np.arange(1, 61) / 60)
    assert metrics.aurc(uncertainty, loss) == pytest.approx(np.mean(expected))
    assert metrics.selective_risk(uncertainty, loss, 0.7) == pytest.approx(expected[41])


def test_tied_uncertainties_are_averaged_over_their_orders(scores):
    uncertainty, _ = scores
    loss = np.random.default_rng(3).random(len(uncertainty))
    generator = np.random.default_rng(4)
    shuffles = []
    for _ in range(3000):
        order = generator.permutation(len(loss))
        order = order[np.argsort(uncertainty[order], kind="stable")]
        shuffles.append(np.mean(np.cumsum(loss[order]) / np.arange(1, len(loss) + 1)))
    error = np.std(shuffles) / np.sqrt(len(shuffles))
    assert abs(metrics.aurc(uncertainty, loss) - np.mean(shuffles)) < 4 * error
    assert metrics.aurc(np.ones_like(loss), loss) == pytest.approx(loss.mean())


@pytest.fixture
def regression():
    generator = np.random.default_rng(5)
    mean, std = generator.normal(size=(40, 2)), generator.uniform(0.2, 2, size=(40, 2))
    return mean, std, mean + 1.3 * std * generator.normal(size=(40, 2))


def test_rmse_and_gaussian_nll(regression):
    mean, std, y = regression
    assert metrics.rmse(mean, y) == pytest.approx(skm.root_mean_squared_error(y.ravel(), mean.ravel()), abs=TOLERANCE)
    reference = GaussianNLLLoss(full=True)(*map(torch.as_tensor, (mean, y, std**2))).item()
    assert metrics.gaussian_nll(mean, std, y) == pytest.approx(reference, abs=TOLERANCE)


def test_crps_gaussian_is_the_integral(regression):
    mean, std, y = (values[:6, 0] for values in regression)
    below = [integrate.quad(lambda t: stats.norm.cdf(t, m, s) ** 2, -30, v)[0] for m, s, v in zip(mean, std, y)]
    above = [integrate.quad(lambda t: stats.norm.sf(t, m, s) ** 2, v, 30)[0] for m, s, v in zip(mean, std, y)]
    assert metrics.crps_gaussian(mean, std, y) == pytest.approx(np.mean(below) + np.mean(above), abs=TOLERANCE)


def test_crps_samples_is_half_the_squared_energy_distance(regression):
    mean, std, y = (values[:, 0] for values in regression)
    draws = mean + std * np.random.default_rng(6).normal(size=(25, 40))
    reference = np.mean([stats.energy_distance(draws[:, i], y[i : i + 1]) ** 2 / 2 for i in range(40)])
    assert metrics.crps_samples(draws, y) == pytest.approx(reference, abs=TOLERANCE)
    torch_reference = continuous_ranked_probability_score(torch.as_tensor(draws.T), torch.as_tensor(y)).item()
    assert metrics.crps_samples(draws, y) == pytest.approx(torch_reference, abs=TOLERANCE)


def test_coverage_counts_both_ends():
    y = np.array([0.0, 1.0, 2.0, 3.0])
    assert metrics.coverage(np.zeros(4), np.full(4, 2.0), y) == 0.75


def test_torch_numpy_and_half_precision_agree(task):
    p, y = task
    assert metrics.nll(p.numpy(), y.numpy()) == metrics.nll(p, y)
    assert metrics.nll(p.half(), y) == pytest.approx(metrics.nll(p, y), abs=2e-3)


PROBS, LABELS = torch.full((4, 3), 1 / 3), torch.tensor([0, 1, 2, 0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.accuracy(PROBS, LABELS[:3]), r"labels: expected shape \(4,\)"),
        (lambda: metrics.accuracy(PROBS, LABELS + 1), r"labels: expected integers in 0..2, got 'from 1 to 3'"),
        (lambda: metrics.nll(PROBS, LABELS - 100), "integers in 0..2"),
        (lambda: metrics.nll(PROBS * float("nan"), LABELS), "probs: expected numbers, got '12 NaN'"),
        (lambda: metrics.nll(PROBS[:0], LABELS[:0]), "probs: expected at least one value"),
        (lambda: metrics.brier(5 * PROBS, LABELS), r"probs: expected values in \[0, 1\]"),
        (lambda: metrics.brier(0.5 * PROBS, LABELS), "rows that sum to one"),
        (lambda: metrics.ece(PROBS, LABELS + 0.5), "whole numbers"),
        (lambda: metrics.ece(PROBS, LABELS, bins=0), "bins"),
        (lambda: metrics.nll(PROBS, LABELS * 0 - 100, ignore_index=-100), "some label other than -100"),
        (lambda: metrics.top_k_accuracy(PROBS, LABELS, k=4), r"k: expected a number in 1..3"),
        (lambda: metrics.accuracy([0.5], LABELS), "a tensor or an array, got 'list'"),
        (lambda: metrics.auroc(PROBS[:, 0], LABELS), "only 0 and 1"),
        (lambda: metrics.auroc(PROBS[:, 0], LABELS > 5), "both 0 and 1"),
        (lambda: metrics.auroc(PROBS[:, 0] / 0, LABELS > 0), "finite numbers"),
        (lambda: metrics.ood_auroc(PROBS[:0], PROBS), "inside: expected at least one value"),
        (lambda: metrics.aurc(PROBS[:, 0], LABELS[:2]), "losses: expected shape"),
        (lambda: metrics.selective_risk(PROBS[:, 0], LABELS, 0.0), "coverage"),
        (lambda: metrics.rmse(PROBS, LABELS), r"mean: expected shape \(4,\) like the targets"),
        (lambda: metrics.gaussian_nll(LABELS, 0 * LABELS, LABELS), "std: expected positive numbers"),
        (lambda: metrics.crps_samples(PROBS, PROBS), "samples: expected shape"),
        (lambda: metrics.coverage(LABELS + 1, LABELS, LABELS), "lower"),
        (lambda: metrics.mean_iou(LABELS, LABELS, classes=2), "predictions: expected integers in 0..1"),
        (lambda: metrics.mean_iou(LABELS[:2], LABELS, classes=3), "predictions: expected shape"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InvalidInput, match=message):
        call()


@pytest.mark.parametrize("degrees", [1, 2, 4, 30, 1000])
def test_student_quantiles_are_those_of_scipy(degrees):
    for probability in (0.01, 0.6, 0.975, 0.999):
        wanted = stats.t.ppf(probability, degrees)
        assert student_quantile(probability, degrees) == pytest.approx(wanted, rel=1e-10)
