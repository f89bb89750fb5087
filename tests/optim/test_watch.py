"""A budget that follows rows that are not trained on."""

import copy
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import posterity as po
from networks import perceptron
from posterity.errors import InvalidInput
from posterity.likelihoods import CategoricalLikelihood, GaussianLikelihood
from posterity.optim import Variational
from posterity.optim._meter import Meter
from posterity.optim.watch import LEAST, MOST, ROWS, START, Watch, adjusted


def labels(n, right, seed=0):
    """Inputs in two classes; a share of the labels is right."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=generator)
    y = (x[:, 0] > 0).long()
    wrong = torch.rand(n, generator=generator) > right
    return x, torch.where(wrong, 1 - y, y)


def network():
    torch.manual_seed(0)
    return perceptron(4, 64, 2)


def train(steps, watched, seed=0, train_rows=(64, 0.75), checkpoint=None):
    """A network on few rows with wrong labels, which it memorises."""
    model, (x, y) = network(), labels(*train_rows)
    optimizer = Variational(torch.optim.AdamW(model.parameters(), lr=0.02), n=len(x), total_steps=200, batch_size=16)
    if watched is not None:
        optimizer.watch(model, watched)
    if checkpoint is not None:
        model.load_state_dict(checkpoint[0])
        optimizer.load_state_dict(checkpoint[1])
    for step in range(optimizer.meter.steps, steps):
        rows = torch.randint(0, len(x), (16,), generator=torch.Generator().manual_seed(step))
        with optimizer.sampled_params(train=True):
            F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def overconfident(outputs):
    """A linear model that is too sure of its labels; with one output, of the logit of the second class."""
    model = nn.Linear(4, outputs, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-3.0, 0, 0, 0], [3.0, 0, 0, 0]] if outputs == 2 else [[6.0, 0, 0, 0]]))
    return model


class TestTemperature:
    def test_of_classes_is_that_of_temperature_scaling(self):
        x, y = labels(400, 0.8)
        model = overconfident(2)
        watch = Watch.of(model, (x, y), "categorical")
        found, gain = watch.temperature([watch.outputs()])
        scaling = po.TemperatureScaling.fit(model(x).detach(), y)
        assert found == pytest.approx(scaling.temperature, rel=2 ** (1 / 16) - 1)  # half a step of the grid
        before, after = (F.cross_entropy(model(x) / t, y).item() for t in (1.0, found))
        assert gain == pytest.approx(before - after, abs=1e-6)

    def test_of_amounts_is_the_ratio_of_error_to_variance(self):
        y = 3 * torch.randn(200, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        watch = Watch.of(nn.Linear(1, 1), (torch.zeros(200, 1), y), GaussianLikelihood(precision=1.0))
        found, gain = watch.temperature([torch.zeros_like(y)] * 4)
        law = torch.distributions.Normal
        assert found == pytest.approx(y.square().mean().item())
        expected = (law(0, math.sqrt(found)).log_prob(y) - law(0, 1).log_prob(y)).mean().item()
        assert gain == pytest.approx(expected)

    def test_averages_probabilities_of_draws(self):
        watch = Watch.of(nn.Linear(1, 2), (torch.zeros(2, 1), torch.tensor([0, 1])), CategoricalLikelihood())
        sure = torch.tensor([[20.0, 0.0], [20.0, 0.0]])
        assert watch.temperature([sure.double()])[1] > 1  # sure, and wrong once in two
        assert watch.temperature([sure.double(), -sure.double()])[1] == pytest.approx(0, abs=1e-9)


class TestOutputTemperature:
    def test_is_that_of_temperature_scaling_held_back_by_a_penalty(self):
        x, y = labels(400, 0.8)
        watch = Watch.of(overconfident(2), (x, y), "categorical")
        scaling = po.TemperatureScaling.fit(overconfident(2)(x).detach(), y).temperature
        assert 0.8 * scaling < watch.output_temperature([watch.outputs()]) <= 2 ** (1 / 16) * scaling
        few = Watch.of(overconfident(2), (x[:8], y[:8]), "categorical")
        alone = po.TemperatureScaling.fit(overconfident(2)(x[:8]).detach(), y[:8]).temperature
        assert 1 < few.output_temperature([few.outputs()]) < 0.8 * alone  # eight rows tell little

    def test_of_two_classes_in_one_output(self):
        x, y = labels(400, 0.8)
        one = Watch.of(overconfident(1), (x, y[:, None].float()), "bernoulli")
        two = Watch.of(overconfident(2), (x, y), "categorical")
        assert one.output_temperature([one.outputs()]) == two.output_temperature([two.outputs()]) > 1

    def test_makes_up_for_what_the_noise_of_the_posterior_leaves(self):
        """The rows that judge are neither trained on nor watched."""
        x, y = labels(2000, 0.75, seed=2)
        model, optimizer = train(200, labels(200, 0.75, seed=1))
        posterior = optimizer.posterior(model, likelihood="categorical")
        assert posterior.output_temperature > 1.2
        scaled, plain = (
            po.predict(model, q, x).log_probs for q in (posterior, replace(posterior, output_temperature=1.0))
        )
        assert F.nll_loss(scaled, y) < F.nll_loss(plain, y)
        again = optimizer.posterior(model, likelihood="categorical")
        assert again.output_temperature == posterior.output_temperature

    def test_is_one_where_nothing_is_watched(self):
        model, optimizer = train(60, None)
        assert optimizer.posterior(model, likelihood="categorical").output_temperature == 1


class TestBudget:
    def test_stays_within_bounds(self):
        budget = START
        for _ in range(30):
            budget = adjusted(budget, 4.0, gain=9.0, paid=0.0)
        assert budget == MOST
        for _ in range(30):
            budget = adjusted(budget, 0.1, gain=9.0, paid=0.0)
        assert budget == LEAST

    def test_grows_where_labels_contradict_and_predictions_are_better_for_it(self):
        """The rows that judge are neither trained on nor watched."""
        x, y = labels(2000, 0.75, seed=2)
        losses, budgets = [], []
        for watched in (None, labels(200, 0.75, seed=1)):
            model, optimizer = train(200, watched)
            p = po.predict(model, optimizer.posterior(model, likelihood="categorical"), x, samples=32)
            losses.append(F.nll_loss(p.log_probs, y).item())
            budgets.append(optimizer.meter.price.budget)
        assert losses[1] < losses[0]
        assert budgets[1] > 3 * START

    def test_never_shrinks_below_what_the_gap_is_worth(self):
        """Looks that find predictions underconfident take away no more than they have added."""
        meter, alone = (Meter.of(1000.0, 10, 50, None, [torch.zeros(3)]) for _ in range(2))
        meter.watch()
        for each in (meter, alone):
            each.total, each.taught = torch.full_like(each.total, 4000.0), torch.full_like(each.total, 100.0)
            each.settled = each.total
            each.steps = 50
        for _ in range(40):
            meter.adjust(0.5, gain=0.1, share=1.0)
        assert meter.price.budget == LEAST
        assert float(meter.following(0.1, 1.0)) == pytest.approx(float(alone.following(0.1, 1.0)))
        meter.price.budget = 0.2  # more than that
        assert float(meter.following(0.1, 1.0)) == pytest.approx(4000 / 0.4)

    def test_resumes_to_the_bit(self):
        watched = labels(100, 0.75, seed=1)
        whole, at_once = train(120, watched)
        model, optimizer = train(70, watched)
        model, optimizer = train(120, watched, checkpoint=copy.deepcopy((model.state_dict(), optimizer.state_dict())))
        assert optimizer.meter.price.budget == at_once.meter.price.budget != START
        assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), model.parameters()))

    def test_leaves_mean_and_mode_in_place(self):
        model, optimizer = train(60, labels(100, 0.75, seed=1))
        assert model.training
        posterior = optimizer.posterior(model, likelihood="categorical")
        assert all(torch.equal(posterior.mean[name], p) for name, p in model.named_parameters())


class TestInput:
    def test_many_rows_are_cut(self):
        assert len(Watch.of(nn.Linear(4, 2), labels(2 * ROWS, 1.0), "categorical").rows) == ROWS

    def test_refuses_a_law_without_temperature(self):
        with pytest.raises(InvalidInput, match=r"likelihood: expected classes or Gaussian noise.*got 'poisson'"):
            Watch.of(nn.Linear(4, 1), (torch.zeros(3, 4), torch.zeros(3, 1)), "poisson")

    def test_refuses_another_model(self):
        model = network()
        optimizer = Variational(torch.optim.AdamW(model.parameters()), n=10)
        with pytest.raises(InvalidInput):
            optimizer.watch(network(), labels(10, 1.0))


@pytest.mark.parametrize("settings", [{}, {"label_smoothing": 0.1}])
def test_fit_watches_validation_data_unless_its_loss_means_something_else(settings):
    budgets = []
    run = po.fit(network(), labels(64, 0.75), method="variational", validation=labels(50, 0.75, seed=1), epochs=8,
                 batch_size=16, callbacks=[Budget(budgets)], progress=False, **settings)  # fmt: skip
    assert run.steps == 32
    assert (START in budgets) == (settings == {})


class Budget(po.learning.callbacks.Callback):
    def __init__(self, seen):
        self.seen = seen

    def step(self, moment):
        self.seen.append(moment.optimizer.meter.price.budget)


@pytest.mark.parametrize("share", [1.0, 0.1])
def test_a_budget_that_the_width_of_the_posterior_does_not_use_is_taken_back(share):
    """At λ = N noise pays P̂/2N, and only a `share` of a budget is for it."""
    meter = Meter.of(100.0, 10, 50, 0.2, [torch.zeros(3)])
    meter.total = torch.full_like(meter.total, 2.0)
    meter.adjust(1.0, gain=0.0, share=share)
    assert meter.price.budget == pytest.approx(0.01 / share)
    cold = Meter.of(100.0, 10, 50, 0.2, [torch.zeros(3)])
    cold.total, cold.price.ess = torch.full_like(cold.total, 2.0), torch.full_like(cold.price.ess, 1000.0)
    cold.adjust(1.0, gain=0.0, share=share)
    assert cold.price.budget == 0.2
