"""A class or another group goes while only a memory is left of the data; held to retraining without it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import posterity as po
from adaptation.problems import classes, glm, logistic, newton_logistic, newton_softmax
from networks import perceptron
from posterity.adaptation import adapt, remember, select
from posterity.adaptation.past import cover
from posterity.batches import Batch
from small_data import handwritten_digits


@pytest.fixture(scope="module")
def four():
    """A softmax regression on four classes at its optimum."""
    x, y = classes(600, k=4)
    return (*glm(newton_softmax(x, y, 1.0, 4), x, likelihood="categorical"), x, y)


def weights(result):
    return result.model.weight.detach().numpy()


def test_all_data_in_the_memory_are_as_good_as_the_data(four):
    model, posterior, x, y = four
    result = adapt(model, posterior, memory=remember(model, (x, y)), remove=lambda batch: batch.targets == 2)
    wanted = newton_softmax(x[y != 2], y[y != 2], 1.0, 4)
    assert np.abs(weights(result) - wanted).max() < 1e-8
    assert result.posterior.n == int((y != 2).sum())


def test_a_class_goes_with_all_that_its_examples_stand_for(four):
    model, posterior, x, y = four
    wanted = newton_softmax(x[y != 2], y[y != 2], 1.0, 4)
    nothing = np.linalg.norm(model.weight.detach().numpy() - wanted)
    away = []
    for seed in range(5):
        memory = select(model, posterior, (x, y), 120, seed=seed)
        result = adapt(model, posterior, memory=memory, remove=lambda batch: batch.targets == 2)
        away.append(np.linalg.norm(weights(result) - wanted) / nothing)
        assert result.posterior.n == int((y != 2).sum())
        assert not (result.posterior.memory.targets == 2).any()
        assert f"{int((y == 2).sum())} of 600 examples were removed" in result.report.notes[0]
    assert np.mean(away) < 0.5
    assert max(away) < 0.8


def test_a_group_that_has_nothing_to_do_with_labels_goes_quietly(four):
    model, posterior, x, y = four
    stays = x[:, 0] <= 1
    wanted = newton_softmax(x[stays], y[stays], 1.0, 4)
    nothing = np.linalg.norm(model.weight.detach().numpy() - wanted)
    for seed in range(5):
        memory = select(model, posterior, (x, y), 60, seed=seed)
        result = adapt(model, posterior, memory=memory, remove=lambda batch: batch.inputs[:, 0] > 1)
        assert np.linalg.norm(weights(result) - wanted) < 2 * nothing  # labels that count w times: twelve times as far
        assert result.posterior.n == pytest.approx(int(stays.sum()), rel=0.15)
        assert (result.posterior.memory.inputs[:, 0] <= 1).all()


def test_what_no_memory_stands_for_stays_and_the_report_says_so(four):
    model, posterior, x, y = four
    memory = select(model, posterior, (x, y), 60, weighted=False)
    result = adapt(model, posterior, memory=memory, remove=lambda batch: batch.targets == 2)
    assert result.posterior.n == 585
    assert "the memory represents 60 examples, the others stay" in repr(result.report)
    assert adapt(model, posterior, data=(x, y), remove=lambda batch: batch.targets == 2).report.notes == ()


def test_the_group_may_be_one_side_of_binary_labels():
    x, y = logistic(400)
    w, _ = newton_logistic(x, y, 1.0)
    model, posterior = glm(w, x)
    goes = (y[:, 0] == 1) & (x[:, 0] > 0)
    wanted, _ = newton_logistic(x[~goes], y[~goes], 1.0)
    memory = select(model, posterior, (x, y), 100)
    result = adapt(model, posterior, memory=memory, remove=lambda b: (b.targets[:, 0] == 1) & (b.inputs[:, 0] > 0))
    assert np.linalg.norm(weights(result)[0] - wanted) < 0.5 * np.linalg.norm(w - wanted)


@pytest.fixture(scope="module")
def digits():
    x, y = (part[:1000] for part in handwritten_digits(shuffled=False))
    torch.manual_seed(0)
    model = perceptron(64, 30, 10, hidden=nn.ReLU)
    po.fit(model, (x, y), method="adamw", epochs=15, lr=5e-3)
    return model, po.laplace(model, (x, y), structure="diag", prior_precision=1.0), x, y


def test_a_network_forgets_a_class_of_which_only_a_memory_is_left(digits):
    model, posterior, x, y = digits
    memory = select(model, posterior, (x, y), 200)
    result = adapt(model, posterior, memory=memory, remove=lambda batch: batch.targets == 3, epochs=30)
    assert result.posterior.n == int((y != 3).sum())
    assert result.posterior.memory.weights.sum().item() == pytest.approx(result.posterior.n, rel=1e-5)
    assert result.model(x).softmax(1)[:, 3].max() < 1e-6
    assert (result.model(x).argmax(1) == y)[y != 3].float().mean() > 0.95


def test_a_group_of_inputs_takes_no_class_along(digits):
    model, posterior, x, y = digits
    memory = select(model, posterior, (x, y), 10)  # one of each class
    one = memory.inputs[memory.targets == 3][0]
    near = (one - memory.inputs).norm(dim=1).sort().values[1] / 2
    result = adapt(model, posterior, memory=memory, remove=lambda b: (b.inputs - one).norm(dim=1) < near, epochs=1)
    assert not (result.posterior.memory.targets == 3).any()  # it was the only one that is remembered
    assert (result.model(x).argmax(1) == y)[y == 3].float().mean() > 0.8


def test_class_probabilities_are_no_labels_to_lose():
    x, _ = classes(60)
    torch.manual_seed(0)
    y = torch.randn(60, 3, dtype=torch.float64).softmax(1)
    model = perceptron(4, 5, 3).double()
    posterior = po.laplace(model, (x, y), likelihood="categorical", structure="diag", prior_precision=1.0)
    assert adapt(model, posterior, data=(x, y), remove=[0, 1], epochs=1).posterior.n == 58
    memory = select(model, posterior, (x, y), 20)
    result = adapt(model, posterior, memory=memory, remove=lambda batch: batch.inputs[:, 0] > 0, epochs=1)
    assert result.posterior.n == 60 - 3 * int((memory.inputs[:, 0] > 0).sum())


@pytest.mark.parametrize("weighted", [True, False])
def test_one_example_is_not_its_class(digits, weighted):
    model, posterior, x, y = digits
    memory = select(model, posterior, (x, y), 10, weighted=weighted)  # one of each class
    three = memory.ids[memory.targets == 3]
    result = adapt(model, posterior, memory=memory, remove=three, epochs=1)
    assert result.posterior.n == 999
    assert (result.model(x).argmax(1) == y)[y == 3].float().mean() > 0.8


def test_the_others_of_a_class_make_up_for_an_example(digits):
    model, posterior, x, y = digits
    memory = select(model, posterior, (x, y), 50)
    three = memory.ids[memory.targets == 3][:2]
    absent = torch.tensor([i for i in (y == 3).nonzero()[:, 0].tolist() if i not in memory.ids])[:1]
    goes = torch.cat((three, absent))
    covering = cover(model, posterior, memory, Batch(x[goes], y[goes], goes), torch.ones(3, dtype=torch.float64))
    assert covering.weights[torch.isin(covering.ids, goes)].tolist() == [1, 1, 1]
    for label in range(10):  # each class as large as it was
        mine = covering.targets == label
        assert covering.weights[mine].sum().item() == pytest.approx((y == label).sum().item(), rel=1e-5)


def test_functions_have_to_pick_examples(four):
    model, posterior, x, y = four
    for picks in (lambda batch: torch.tensor([3, 17]), lambda batch: batch.targets, lambda batch: [True]):
        with pytest.raises(po.PosterityError, match="remove: expected a function that returns 600 truth values"):
            adapt(model, posterior, data=(x, y), remove=picks)
    one, other = (
        adapt(model, posterior, data=(x, y), remove=picks).report.removed
        for picks in (lambda batch: batch.targets == 1, lambda batch: (batch.targets == 1).numpy())
    )
    assert torch.equal(one, other)
    for wrong in (3, "3"):
        with pytest.raises(po.PosterityError, match="remove: expected a list of ids"):
            adapt(model, posterior, data=(x, y), remove=wrong)
