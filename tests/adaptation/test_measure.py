"""Measured what-ifs: exact for linear models, paired trainings with an interval for networks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import posterity as po
from adaptation.problems import classes, newton_softmax
from networks import perceptron
from posterity.adaptation.solve.warm_start import Corrected


@pytest.fixture(scope="module")
def linear():
    x, y = classes(80)
    model = nn.Linear(4, 3, bias=False).double()
    model.weight.data = torch.tensor(newton_softmax(x, y, 1.0, 3)).reshape(3, 4)
    posterior = po.laplace(model, (x, y), structure="full", prior_precision=1.0)
    return po.memory_map(model, posterior, (x, y)), (x, y)


def test_a_linear_model_is_solved_twice(linear):
    m, (x, y) = linear
    test = classes(50, seed=5)
    found = po.measure(m, remove=[3, 5, 8], relabel={1: 2}, on=test)
    keep = [i for i in range(80) if i not in (3, 5, 8)]
    new = y.clone()
    new[1] = 2
    losses = []
    for rows, labels in ((range(80), y), (keep, new)):
        w = torch.tensor(newton_softmax(x[list(rows)], labels[list(rows)], 1.0, 3)).reshape(3, 4)
        losses.append(nn.functional.cross_entropy(test[0] @ w.T, test[1]).item())
    assert found.loss == pytest.approx(losses[0], abs=1e-9)
    assert found.change == pytest.approx(losses[1] - losses[0], abs=1e-9)
    assert found.low == found.high == pytest.approx(found.change)
    assert found.repeats == 0


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    x = torch.randn(120, 2)
    y = (x[:, 0] > 0).long()
    wrong = y.clone()
    wrong[:10] = 1 - wrong[:10]
    model = perceptron(2, 8, 2)
    posterior = po.fit(model, (x, wrong), method="adamw", epochs=60, lr=1e-2, prior=1.0).posterior
    posterior = po.laplace(model, (x, wrong), structure="kron", prior_precision=1.0)
    return po.memory_map(model, posterior, (x, wrong)), (x, y)


def test_correcting_wrong_labels_helps_and_is_measured_clearly(network):
    m, (_, y) = network
    test = torch.randn(400, 2, generator=torch.Generator().manual_seed(1))
    seen = []
    relabel = {i: int(y[i]) for i in range(10)}
    found = po.measure(
        m, relabel=relabel, on=(test, (test[:, 0] > 0).long()), progress=lambda done, of: seen.append((done, of))
    )
    assert found.change < 0
    assert found.clear
    assert found.low < found.change < found.high
    assert found.accuracy_change >= 0
    assert seen == [(k, 6) for k in range(1, 7)]
    again = po.measure(m, relabel=relabel, on=(test, (test[:, 0] > 0).long()))
    assert again == found


def test_a_change_to_the_labels_that_there_are_is_nothing(network, monkeypatch):
    """Both trainings see the same batches and random numbers: without a change they end at the same bits."""
    m, _ = network
    labels = m.columns.set_index("id")["label"]
    found = po.measure(m, relabel={4: int(labels[4])}, repeats=2)
    assert (found.change, found.low, found.high) == (0.0, 0.0, 0.0)
    assert not found.clear


def test_removed_rows_have_no_weight():
    data = po.batches.Batch(torch.ones(4, 1), torch.zeros(4, 1), torch.arange(4))
    prior = po.posterior.Diagonal({"weight": torch.zeros(1, 1)}, {"weight": torch.ones(())})
    task = Corrected(data, 1, po.likelihoods.GaussianLikelihood(), prior, 1.0, torch.tensor([1.0, 1.0, 1.0, 0.0]))
    losses = task.losses(nn.Linear(1, 1, bias=False), torch.tensor([0, 3]))
    assert losses[0] > 0
    assert losses[1] == 0


def test_bad_questions(linear):
    m, _ = linear
    for bad in (
        {},
        {"remove": [999]},
        {"remove": [1], "repeats": 1},
        {"remove": [1], "repeats": 2.5},
        {"relabel": {1: 9}},
    ):
        with pytest.raises(po.PosterityError):
            po.measure(m, **bad)
