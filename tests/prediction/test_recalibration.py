"""Temperature scaling against scipy's optimiser; conformal coverage by simulation."""

import numpy as np
import pytest
import torch
from scipy import optimize, special, stats
from torch import nn

from posterity import metrics
from posterity.errors import InvalidInput
from posterity.posterior import Diagonal, Posterior
from posterity.prediction import ConformalIntervals, ConformalSets, PredictiveModule, TemperatureScaling, predict
from prediction.cases import make_case


def overconfident(n, seed=0):
    """Logits three times too large, and labels drawn from the true probabilities."""
    generator = torch.Generator().manual_seed(seed)
    truth = 1.5 * torch.randn(n, 5, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(truth.softmax(-1), 1, generator=generator).squeeze(-1)
    return 3 * truth, labels


@pytest.mark.parametrize("soft", [False, True])
def test_the_fitted_temperature_minimises_the_nll(soft):
    logits, labels = overconfident(2000)
    targets = torch.nn.functional.one_hot(labels, 5).double()
    if soft:
        labels = targets = (logits / 3).softmax(-1)

    def nll(log_temperature):
        return -(targets.numpy() * special.log_softmax(logits.numpy() / np.exp(log_temperature), -1)).sum(-1).mean()

    reference = np.exp(optimize.minimize_scalar(nll, bounds=(-3, 3), method="bounded", options={"xatol": 1e-10}).x)
    scaling = TemperatureScaling.fit(logits, labels)
    assert scaling.temperature == pytest.approx(reference, rel=1e-6)
    assert scaling.temperature == pytest.approx(3, rel=0.1)
    fresh, fresh_labels = overconfident(4000, seed=1)
    assert metrics.ece(scaling(fresh), fresh_labels) < 0.2 * metrics.ece(fresh.softmax(-1), fresh_labels)


def test_classes_that_are_ruled_out_change_no_temperature():
    logits, labels = overconfident(300)
    ruled_out = torch.cat((logits, torch.full((300, 1), -torch.inf)), -1)
    scaling = TemperatureScaling.fit(ruled_out, labels.to(torch.uint8))
    assert scaling.temperature == pytest.approx(TemperatureScaling.fit(logits, labels).temperature)
    assert (scaling(ruled_out)[:, -1] == 0).all()


def test_logits_and_log_probabilities_are_the_same_scores():
    logits, labels = overconfident(300)
    from_logits = TemperatureScaling.fit(logits, labels)
    from_log_probs = TemperatureScaling.fit(logits.log_softmax(-1), labels)
    assert from_logits.temperature == pytest.approx(from_log_probs.temperature)
    np.testing.assert_allclose(from_logits(logits), from_logits(logits.log_softmax(-1)), atol=1e-12)


def test_predictions_are_rescaled_as_they_are():
    p = predict(*make_case("diagonal"), samples=3)
    labels = torch.arange(len(p)) % 3
    scaling = TemperatureScaling.fit(p, labels)
    assert metrics.nll(scaling(p), labels) <= metrics.nll(p.probs, labels)
    assert (scaling(p).argmax(-1) == p.probs.argmax(-1)).all()


@pytest.mark.parametrize("score", ["lac", "aps"])
def test_sets_cover_as_promised_over_calibrations(score):
    logits, labels = overconfident(60_000)
    probs = logits.softmax(-1)  # badly calibrated on purpose: the promise does not rest on the model
    n, alpha, covered = 99, 0.2, []
    for start in range(0, 60_000, 300):
        calibration, test = slice(start, start + n), slice(start + n, start + 300)
        sets = ConformalSets.fit(probs[calibration], labels[calibration], alpha=alpha, score=score)
        hit = sets(probs[test]).gather(-1, labels[test].unsqueeze(-1))
        covered.append(hit.double().mean().item())
    error = stats.sem(covered)
    assert np.mean(covered) > 1 - alpha - 4 * error
    if score == "lac":  # scores without ties: the promise is also tight
        assert np.mean(covered) < 1 - alpha + 1 / (n + 1) + 4 * error


def test_aps_sets_are_never_empty_and_grow_where_the_model_doubts():
    logits, labels = overconfident(500)
    probs = logits.softmax(-1)
    sizes = ConformalSets.fit(probs, labels, alpha=0.05, score="aps")(probs).sum(-1)
    assert sizes.min() >= 1
    doubt = probs.max(-1).values < 0.6
    assert sizes[doubt].double().mean() > sizes[~doubt].double().mean()


def test_intervals_cover_as_promised_over_calibrations():
    generator = torch.Generator().manual_seed(3)
    mean = torch.randn(30_000, generator=generator, dtype=torch.float64)
    std = 0.5 + torch.rand(30_000, generator=generator, dtype=torch.float64)
    y = mean + 2 * std * torch.distributions.StudentT(3.0).sample((30_000,))  # neither Gaussian nor of this width
    n, alpha, covered = 49, 0.1, []
    for start in range(0, 30_000, 150):
        calibration, test = slice(start, start + n), slice(start + n, start + 150)
        intervals = ConformalIntervals.fit(mean[calibration], std[calibration], y[calibration], alpha=alpha)
        covered.append(metrics.coverage(*intervals(mean[test], std[test]), y[test]))
    error = stats.sem(covered)
    assert 1 - alpha - 4 * error < np.mean(covered) < 1 - alpha + 1 / (n + 1) + 4 * error


def test_too_few_examples_promise_everything():
    sets = ConformalSets.fit(torch.tensor([[0.9, 0.1]] * 8), torch.zeros(8, dtype=torch.long), alpha=0.1)
    assert sets(torch.tensor([[1.0, 0.0]])).all()
    enough = ConformalSets.fit(torch.tensor([[0.9, 0.1]] * 9), torch.zeros(9, dtype=torch.long), alpha=0.1)
    assert enough(torch.tensor([[0.95, 0.05]])).tolist() == [[True, False]]


def test_arrays_of_other_libraries_are_calibrated():
    probs, labels = (part.numpy() for part in (overconfident(50)[0].softmax(-1), overconfident(50)[1]))
    sets = ConformalSets.fit(probs, labels, alpha=0.1)
    own = 1 - probs[np.arange(50), labels]
    assert sets.threshold == np.quantile(own, np.ceil(51 * 0.9) / 50, method="inverted_cdf")
    np.testing.assert_array_equal(sets(probs).numpy(), 1 - probs <= sets.threshold)
    mean, std, targets = probs[:, 0], np.full(50, 0.5), probs[:, 1].tolist()
    intervals = ConformalIntervals.fit(mean, std, targets, alpha=0.1)
    error = np.quantile(abs(np.array(targets) - mean) / std, np.ceil(51 * 0.9) / 50, method="inverted_cdf")
    np.testing.assert_allclose(intervals(mean, std)[1].numpy(), mean + error * std, rtol=1e-12)
    same = TemperatureScaling.fit(overconfident(50)[0], overconfident(50)[1])
    assert TemperatureScaling.fit(np.log(probs), labels.tolist()).temperature == pytest.approx(same.temperature)


@pytest.mark.parametrize(("samples", "method"), [(16, "sampled"), (0, None), (16, "linearised"), (16, "probit")])
def test_an_output_temperature_is_that_of_a_linear_model_with_smaller_weights(samples, method):
    model, x, T = nn.Linear(4, 3).double(), torch.randn(20, 4, dtype=torch.float64), 1.7
    mean = {name: p.detach().clone() for name, p in model.named_parameters()}
    precision = {name: torch.full_like(p, 5.0) for name, p in mean.items()}
    q = Diagonal(mean, precision)
    small = Diagonal({k: t / T for k, t in mean.items()}, {k: t * T**2 for k, t in precision.items()})
    one, other = (
        Posterior(structure, prior=q, n=10, ess=10, likelihood="categorical", output_temperature=t)
        for structure, t in ((q, T), (small, 1.0))
    )
    found, wanted = (predict(model, posterior, x, samples, method=method) for posterior in (one, other))
    torch.testing.assert_close(found.log_probs, wanted.log_probs)
    if method == "sampled":
        torch.testing.assert_close(found.mutual_information, wanted.mutual_information)
        torch.testing.assert_close(PredictiveModule(model, one, samples)(x), wanted.probs)


def test_an_output_temperature_leaves_amounts_alone():
    model, x = nn.Linear(4, 1).double(), torch.randn(20, 4, dtype=torch.float64)
    q = Diagonal.isotropic({name: p.detach() for name, p in model.named_parameters()}, 5.0)
    one, other = (Posterior(q, prior=q, n=10, ess=10, likelihood="gaussian", output_temperature=t) for t in (1.7, 1.0))
    torch.testing.assert_close(predict(model, one, x).mean, predict(model, other, x).mean)


LOGITS, LABELS = overconfident(20)
PROBS = LOGITS.softmax(-1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TemperatureScaling(0.0), "temperature: expected a positive finite number"),
        (lambda: TemperatureScaling.fit(LOGITS, LABELS + 5), "labels: expected integers in 0..4"),
        (lambda: TemperatureScaling.fit(LOGITS, LABELS[:3]), "labels: expected shape"),
        (lambda: TemperatureScaling.fit(LOGITS * torch.nan, LABELS), "scores: expected numbers"),
        (lambda: TemperatureScaling.fit(LOGITS[:0], LABELS[:0]), "at least one"),
        (lambda: TemperatureScaling.fit(LOGITS, LOGITS.argmax(-1)), "some that the scores get wrong"),
        (lambda: ConformalSets.fit(PROBS, LABELS, alpha=1.0), "alpha: expected a probability strictly between"),
        (lambda: ConformalSets.fit(PROBS, LABELS, score="raps"), "score: expected 'lac' or 'aps'"),
        (lambda: ConformalSets.fit(PROBS, LABELS + 5), "integers in 0..4"),
        (lambda: ConformalSets.fit(PROBS, PROBS), r"labels: expected integers \(N,\), got 'torch.float64 \(20, 5\)'"),
        (lambda: ConformalSets.fit(PROBS[:0], LABELS[:0]), "at least one"),
        (lambda: ConformalIntervals.fit(PROBS, 0 * PROBS, PROBS), "std: expected positive numbers"),
        (lambda: ConformalIntervals.fit(PROBS, PROBS[:3], PROBS), "std: expected shape"),
        (lambda: ConformalIntervals.fit(PROBS, PROBS, PROBS[:3]), "targets: expected shape"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InvalidInput, match=message):
        call()
