"""Heads on frozen features: the optimum under a prior that cross-validation chose, and draws that cost nothing."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch.nn import functional as F

from posterity import adapt, predict
from posterity.runs.heads import PRIOR, PRIORS, TEMPERATURE, TEMPERATURES, choose_head, train_head
from posterity.runs.networks import HEAD, network
from posterity.runs.preprocessing import Examples
from posterity.runs.targets import Classes


def examples(n, d, classes, noise, seed=0):
    """Labels of a softmax regression, of which `noise` makes a share no more than guesses."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator)
    weights = torch.randn(d, classes, generator=torch.Generator().manual_seed(99))
    labels = (x @ weights).argmax(1)
    guesses = torch.rand(n, generator=generator) < noise
    labels = torch.where(guesses, torch.randint(0, classes, (n,), generator=generator), labels)
    return Examples(x, labels, torch.arange(n))


@pytest.fixture(scope="module")
def data():
    return examples(300, 40, 3, noise=0.4)


def test_the_prior_is_the_one_that_scikit_learn_finds_best(data):
    found = choose_head(data, 3, 5, seed=0)
    part = torch.randperm(300, generator=torch.Generator().manual_seed(0)) % 5
    losses = []
    for prior in PRIORS:
        total = 0.0
        for k in range(5):
            seen, unseen = part != k, part == k
            reference = LogisticRegression(C=1 / prior, max_iter=1000).fit(data.inputs[seen], data.targets[seen])
            probs = reference.predict_proba(data.inputs[unseen])
            total -= np.log(probs[np.arange(len(probs)), data.targets[unseen]]).sum()
        losses.append(total / 300)
    best = int(np.argmin(losses))
    assert found.prior in PRIORS[: best + 1]
    assert losses[PRIORS.index(found.prior)] < 1.006 * min(losses)  # the weakest within half a percent
    assert losses[PRIORS.index(found.prior) - 1] > 1.004 * min(losses)
    assert found.folds.loss == pytest.approx(min(losses), rel=1e-3)  # forty steps of L-BFGS


def test_noise_asks_for_a_strong_prior_and_clean_labels_for_a_weak_one(data):
    assert choose_head(examples(300, 40, 3, noise=0.0), 3, 5, seed=0).prior < choose_head(data, 3, 5, seed=0).prior


def test_draws_cost_no_more_than_the_tolerance(data):
    head = choose_head(data, 3, 5, seed=0)
    run = train_head(network(HEAD, (40,), 3), data, Classes("y", ("a", "b", "c")), **head.options())
    new = examples(2000, 40, 3, noise=0.4, seed=1)
    mean, drawn = (F.nll_loss(predict(run.model, run.posterior, new.inputs, k).log_probs, new.targets) for k in (0, 64))
    assert head.temperature in TEMPERATURES[1:]  # a mean field over 120 weights and 300 rows is too wide
    assert drawn < 1.02 * mean  # half a percent out of fold, and the spread of 300 rows' choice
    assert run.posterior.temperature == pytest.approx(head.temperature)


def test_the_mean_is_the_optimum(data):
    run = train_head(network(HEAD, (40,), 3), data, Classes("y", ("a", "b", "c")), prior=10.0, temperature=0.25)
    reference = LogisticRegression(C=0.1, tol=1e-10, max_iter=1000).fit(data.inputs, data.targets)
    probs = predict(run.model, run.posterior, data.inputs, 0).probs
    np.testing.assert_allclose(probs, reference.predict_proba(data.inputs), atol=1e-3)
    assert run.posterior.class_names == ("a", "b", "c")


def test_an_adapted_head_is_the_one_that_training_again_finds(data):
    classes, settings = Classes("y", ("a", "b", "c")), {"prior": 10.0, "temperature": 0.25}
    wrong = (data.targets == 1).nonzero()[::2, 0]
    given = data._replace(targets=data.targets.index_fill(0, wrong, 0))  # classes of many sizes: the bias matters
    run = train_head(network(HEAD, (40,), 3), given, classes, **settings)
    again = train_head(network(HEAD, (40,), 3), data, classes, **settings)
    result = adapt(
        run.model, run.posterior, data=(given.inputs, given.targets), relabel=dict.fromkeys(wrong.tolist(), 1)
    )
    before, after, wanted = (predict(r.model, r.posterior, data.inputs, 0).probs for r in (run, result, again))
    assert result.report.exact
    assert (before - wanted).abs().max() > 0.05
    torch.testing.assert_close(after, wanted, atol=1e-3, rtol=0)  # as near as L-BFGS comes to its optimum


def test_without_folds_there_is_a_usual_choice(data):
    assert choose_head(data, 3, 0, seed=0).options() == {"prior": PRIOR, "temperature": TEMPERATURE}


def test_rows_whose_class_their_fold_has_not_met_do_not_count():
    few = examples(60, 10, 3, noise=0.0)
    alone = few._replace(targets=few.targets + 3)  # three classes of many, and 30 of one row each
    alone.targets[:30] = torch.arange(6, 36)
    found = choose_head(alone, 36, 5, seed=0)
    losses = F.cross_entropy(found.folds.outputs, alone.targets, reduction="none")
    assert found.folds.loss <= losses[30:].mean() * 1.005 < losses.mean()
