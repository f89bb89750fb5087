"""Linear models: what `adapt` gives with all old data as memory is what retraining gives, computed in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import posterity as po
from adaptation.problems import classes, glm, logistic, newton_logistic, newton_softmax
from networks import perceptron
from posterity.adaptation import adapt, remember, select
from posterity.likelihoods import GaussianLikelihood
from posterity.posterior import Diagonal, Full, LastLayer, Posterior


@pytest.fixture
def old():
    """A logistic regression on 60 examples with prior precision 2, at its optimum."""
    x, y = logistic(60)
    w, _ = newton_logistic(x, y, 2.0)
    return (*glm(w, x, precision=2.0), x, y)


def weights(result):
    return result.model.weight.detach().numpy()[0]


def check(result, x, y, precision):
    """Mean and precision equal those of retraining."""
    w, hessian = newton_logistic(x, y, precision)
    assert np.abs(weights(result) - w).max() < 1e-8
    assert np.abs(result.posterior.structure.precision.numpy() - hessian).max() < 1e-8
    assert result.posterior.n == len(x)
    assert result.report.exact
    assert result.report.residual < 1e-10


def test_adding_is_retraining(old):
    model, posterior, x, y = old
    x2, y2 = logistic(25, seed=5, shift=1.0)
    result = adapt(model, posterior, data=(x, y), add=(x2, y2))
    check(result, torch.cat((x, x2)), torch.cat((y, y2)), 2.0)
    assert result.report.added.tolist() == list(range(60, 85))


def test_removing_is_retraining(old):
    model, posterior, x, y = old
    result = adapt(model, posterior, data=(x, y), remove=[3, 17, 42, 59])
    stays = torch.tensor([i for i in range(60) if i not in (3, 17, 42, 59)])
    check(result, x[stays], y[stays], 2.0)
    by_rule = adapt(model, posterior, data=(x, y), remove=lambda batch: batch.inputs[:, 0] > 1)
    check(by_rule, x[x[:, 0] <= 1], y[x[:, 0] <= 1], 2.0)


def test_relabelling_is_retraining(old):
    model, posterior, x, y = old
    other = y.clone()
    other[[2, 8]] = 1 - other[[2, 8]]
    result = adapt(model, posterior, data=(x, y), relabel={2: other[2].item(), 8: other[8].item()})
    w, _ = newton_logistic(x, other, 2.0)
    assert np.abs(weights(result) - w).max() < 1e-8
    assert result.posterior.n == 60
    assert torch.equal(result.posterior.memory.targets.sort(0).values, other.sort(0).values)


@pytest.mark.parametrize("precision", [0.2, 20.0])
def test_another_regulariser_is_retraining(old, precision):
    model, posterior, x, y = old
    check(adapt(model, posterior, data=(x, y), prior_precision=precision), x, y, precision)


def test_everything_at_once_is_retraining(old):
    model, posterior, x, y = old
    x2, y2 = logistic(10, seed=5)
    other = y.clone()
    other[7] = 1 - other[7]
    result = adapt(
        model, posterior, data=(x, y), add=(x2, y2), remove=[0, 1], relabel={7: other[7].item()}, prior_precision=0.7
    )
    check(result, torch.cat((x[2:], x2)), torch.cat((other[2:], y2)), 0.7)


class Columns(nn.Module):
    """A linear model on some of the inputs."""

    def __init__(self, columns):
        super().__init__()
        self.columns = columns
        self.linear = nn.Linear(len(columns), 1, bias=False, dtype=torch.float64)

    def forward(self, x):
        """Logits."""
        return self.linear(x[:, self.columns])


def test_a_nested_model_is_retraining(old):
    model, posterior, x, y = old
    result = adapt(model, posterior, data=(x, y), into=Columns([0, 2, 3]), prior_precision=2.0)
    w, _ = newton_logistic(x[:, [0, 2, 3]], y, 2.0)
    assert np.abs(result.model.linear.weight.detach().numpy()[0] - w).max() < 1e-8
    assert result.report.exact


class Bent(Columns):
    """A model of as many weights as the old one, whose features are others."""

    def forward(self, x):
        """Logits."""
        return self.linear(x[:, self.columns] ** 3)


@pytest.mark.parametrize("settings", [{"method": "ewc"}, {"memory": 3}])
def test_other_features_are_never_called_exact(old, settings):
    model, posterior, x, y = old
    result = adapt(model, posterior, data=(x, y), into=Bent([0, 1, 2, 3]), compare=True, **settings)
    assert result.report.table.loc["adapted", "distance"] > 0.1
    assert not result.report.exact


def test_removal_after_addition_is_the_identity(old):
    model, posterior, x, y = old
    x2, y2 = logistic(25, seed=5, shift=1.0)
    kept = remember(model, (x[:20], y[:20], torch.arange(20)))  # a part of the past: exact all the same
    for memory in (None, kept):
        source = {"data": (x, y)} if memory is None else {"memory": memory}
        longer = adapt(model, posterior, add=(x2, y2), **source)
        back = adapt(longer.model, longer.posterior, remove=longer.report.added)
        assert np.abs(weights(back) - model.weight.detach().numpy()[0]).max() < 1e-8
        assert torch.allclose(back.posterior.structure.precision, posterior.structure.precision, atol=1e-8)
        assert back.posterior.n == posterior.n
        assert set(back.posterior.memory.ids.tolist()) == set(range(60 if memory is None else 20))


def test_classes_and_a_bias():
    x, y = classes(80)
    one = torch.cat((x, torch.ones(80, 1)), 1)
    w = newton_softmax(one, y, 0.5, 3)
    model = nn.Linear(4, 3, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(torch.tensor(w[:, :4]))
        model.bias.copy_(torch.tensor(w[:, 4]))
    posterior = po.laplace(model, (x, y), structure="full", prior_precision=0.5)
    x2, y2 = classes(30, seed=3)
    result = adapt(model, posterior, data=(x, y), add=(x2, y2), remove=list(range(10)))
    both = torch.cat((one[10:], torch.cat((x2, torch.ones(30, 1)), 1)))
    wanted = newton_softmax(both, torch.cat((y[10:], y2)), 0.5, 3)
    assert np.abs(result.model.weight.detach().numpy() - wanted[:, :4]).max() < 1e-8
    assert np.abs(result.model.bias.detach().numpy() - wanted[:, 4]).max() < 1e-8
    again = po.laplace(
        result.model, (torch.cat((x[10:], x2)), torch.cat((y[10:], y2))), structure="full", prior_precision=0.5
    )
    assert torch.allclose(again.structure.precision, result.posterior.structure.precision, atol=1e-8)


def test_a_new_class_grows_the_head_and_is_retraining():
    x, y = classes(90, k=4, seed=2)
    first = y < 3
    w = newton_softmax(x[first], y[first], 0.5, 3)
    model, posterior = glm(w, x[first], likelihood="categorical", precision=0.5)
    add = (x[~first], y[~first])
    with pytest.raises(po.PosterityError, match="classes=4"):
        adapt(model, posterior, data=(x[first], y[first]), add=add)
    result = adapt(model, posterior, data=(x[first], y[first]), add=add, classes=4)
    wanted = newton_softmax(torch.cat((x[first], x[~first])), torch.cat((y[first], y[~first])), 0.5, 4)
    assert np.abs(result.model.weight.detach().numpy() - wanted).max() < 1e-8
    assert model.weight.shape == (3, 4)
    assert "no adaptation" in result.report.table.index


def test_a_last_layer_is_solved_exactly():
    torch.manual_seed(0)
    x, y = classes(80)
    body = nn.Sequential(nn.Linear(4, 6), nn.Tanh()).double()
    phi = body(x).detach()
    w = newton_softmax(phi, y, 1.0, 3)
    head = nn.Linear(6, 3, bias=False, dtype=torch.float64)
    model = nn.Sequential(body, head)
    with torch.no_grad():
        head.weight.copy_(torch.tensor(w))
    posterior = po.laplace(model, (x, y), structure="last_layer", prior_precision=1.0)
    result = adapt(model, posterior, data=(x, y), remove=[0, 1, 2, 3, 4], compare=True)
    wanted = newton_softmax(phi[5:], y[5:], 1.0, 3)
    assert np.abs(result.model[1].weight.detach().numpy() - wanted).max() < 1e-8
    assert torch.equal(result.model[0][0].weight, model[0][0].weight)
    assert result.report.table.loc["adapted", "distance"] < 1e-8
    assert result.report.table.loc["no adaptation", "distance"] > 1e-3


def test_a_last_layer_too_large_for_a_hessian_is_trained_alone(monkeypatch):
    torch.manual_seed(0)
    x, y = classes(80)
    model = perceptron(4, 6, 3).double()
    posterior = po.laplace(model, (x, y), structure="last_layer", inner="kron", prior_precision=1.0)
    monkeypatch.setattr("posterity.adaptation.heads.LARGEST", 20)
    result = adapt(model, posterior, data=(x, y), memory=80, remove=[0, 1], epochs=2)
    assert not result.report.exact
    assert isinstance(result.posterior.structure, LastLayer)
    assert torch.equal(result.model[0].weight, model[0].weight)
    assert not torch.equal(result.model[2].weight, model[2].weight)


def test_a_small_memory_with_its_remainder_comes_close(old):
    model, posterior, x, y = old
    x2, y2 = logistic(20, seed=5, shift=1.0)
    wanted, _ = newton_logistic(torch.cat((x, x2)), torch.cat((y, y2)), 2.0)
    start = np.linalg.norm(model.weight.detach().numpy()[0] - wanted)
    memory = select(model, posterior, (x, y), 6)
    result = adapt(model, posterior, memory=memory, add=(x2, y2))
    assert np.linalg.norm(weights(result) - wanted) < start / 4
    without = adapt(model, posterior, memory=memory, add=(x2, y2), method="ewc")
    assert np.linalg.norm(weights(without) - wanted) < start / 4


def test_the_bound_holds(old):
    model, posterior, x, y = old
    x2, y2 = logistic(25, seed=5, shift=1.0)
    result = adapt(model, posterior, data=(x, y), memory=10, add=(x2, y2), compare=True)
    wanted, _ = newton_logistic(torch.cat((x, x2)), torch.cat((y, y2)), 2.0)
    away = np.linalg.norm(weights(result) - wanted)
    assert result.report.table.loc["adapted", "distance"] == pytest.approx(away, abs=1e-8)
    assert 0 < away <= result.report.bound
    assert result.report.memory == (10, 35)
    assert not result.report.exact
    assert result.report.represented == pytest.approx(60)


def test_examples_stand_for_as_many_after_each_adaptation(old):
    model, posterior, x, y = old
    memory = select(model, posterior, (x, y), 10)
    for i in range(3):
        new = logistic(4, seed=10 + i)
        result = adapt(model, posterior, memory=memory, add=new)
        model, posterior, memory = result.model, result.posterior, None
        assert posterior.memory.weights.sum().item() == pytest.approx(posterior.n)
    data = torch.cat([x] + [logistic(4, seed=10 + i)[0] for i in range(3)])
    labels = torch.cat([y] + [logistic(4, seed=10 + i)[1] for i in range(3)])
    wanted, _ = newton_logistic(data, labels, 2.0)
    assert np.linalg.norm(weights(result) - wanted) < 0.1


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_linear_gaussian_tasks_give_the_batch_posterior_in_any_order(order):
    """Variational continual learning in the conjugate case: each posterior is the next prior."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 15, 4, generator=generator, dtype=torch.float64)
    y = torch.randn(3, 15, 1, generator=generator, dtype=torch.float64)
    model = nn.Linear(4, 1, bias=False, dtype=torch.float64)
    first, *later = order
    prior = Diagonal.isotropic(dict(model.named_parameters()), 0.7)
    precision = 0.7 * torch.eye(4, dtype=torch.float64) + 3 * x[first].T @ x[first]
    with torch.no_grad():
        model.weight.copy_(torch.linalg.solve(precision, 3 * x[first].T @ y[first]).T)
    posterior = Posterior.of(
        model, Full({"weight": model.weight}, precision), prior=prior, n=15, ess=15, likelihood=GaussianLikelihood(3.0)
    )
    for task in later:
        result = adapt(model, posterior, add=(x[task], y[task]), method="ewc")
        model, posterior = result.model, result.posterior
    everything, targets = x.reshape(45, 4), y.reshape(45, 1)
    batch = 0.7 * torch.eye(4, dtype=torch.float64) + 3 * everything.T @ everything
    assert torch.allclose(posterior.structure.precision, batch, atol=1e-9)
    mean = torch.linalg.solve(batch, 3 * everything.T @ targets)
    assert result.report.exact
    assert torch.allclose(posterior.mean["weight"], mean.T, atol=1e-9)
    assert posterior.n == 45


def test_a_prior_around_the_old_weights_is_not_called_exact():
    x, y = logistic(80)
    torch.manual_seed(0)
    model = nn.Linear(x.shape[1], 1, dtype=x.dtype)
    posterior = po.fit(model, (x, y), likelihood="bernoulli", epochs=60).posterior
    result = adapt(model, posterior, data=(x, y), remove=range(5))
    assert not result.report.exact
    assert any("a prior around the old weights" in note for note in result.report.notes)
    given = adapt(model, posterior, data=(x, y), remove=range(5), prior_precision=1.0)
    assert given.report.exact  # a prior of its own: that of retraining
    assert not given.report.notes
