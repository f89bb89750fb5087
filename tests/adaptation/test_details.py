"""Details of an adaptation that other tests do not reach: temperatures, few examples, defaults, words of the report."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from torch import nn

import posterity as po
from adaptation.problems import classes, glm, logistic, network, newton_logistic
from adaptation.test_schedules import TRAINING, problem, trained
from networks import perceptron
from posterity.adaptation import EWC, VCL, adapt, fromp, remember, toy
from posterity.adaptation.groups import DRAWS, Others
from posterity.adaptation.heads import find_head
from posterity.adaptation.past import Past
from posterity.adaptation.penalties.quadratic import Quadratic
from posterity.adaptation.solve import warm_start
from posterity.adaptation.solve.schedule import Schedule
from posterity.adaptation.solve.warm_start import Corrected, descend, set_out
from posterity.batches import Batch
from posterity.curvature import full_ggn
from posterity.errors import InvalidInput
from posterity.likelihoods import GaussianLikelihood, likelihood
from posterity.posterior import Diagonal, Full, Posterior
from posterity.trees import snapshot, to_vector, trainable


def test_precision_beyond_that_of_the_data_stays_by_the_share_of_examples():
    """A linear regression whose posterior is narrower than its data make it, by the same number everywhere."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20, 3, generator=generator, dtype=torch.float64)
    y = x @ torch.ones(3, 1, dtype=torch.float64)
    model = nn.Linear(3, 1, bias=False).double()
    mean = snapshot(trainable(model))
    squares = 2.0 * x.square().sum(0)
    q = Diagonal(mean, {"weight": (0.5 + squares + 7.0)[None]})
    posterior = Posterior.of(
        model, q, prior=Diagonal.isotropic(mean, 0.5), n=20, ess=20, likelihood=GaussianLikelihood(2.0)
    )
    found = adapt(model, posterior, data=(x, y), remove=range(5)).posterior.structure
    wanted = 0.5 + 2.0 * x[5:].square().sum(0) + 7.0 * 15 / 20
    torch.testing.assert_close(found.precision["weight"][0], wanted)


def test_a_tempered_full_posterior_of_a_network_stays_as_cold():
    net, (x, y) = network(), classes(12)
    ggn = full_ggn(net, [(x, y)], "categorical", list(trainable(net)))
    mean = snapshot(trainable(net))
    size = len(ggn)
    q = Full(mean, 2 * ggn + 1.2 * torch.eye(size, dtype=torch.float64))
    posterior = Posterior.of(net, q, prior=Diagonal.isotropic(mean, 1.2), n=12, ess=24, likelihood="categorical")
    result = adapt(net, posterior, data=(x, y), remove=[0, 1], memory=12, epochs=1)
    now = full_ggn(result.model, [(x[2:], y[2:])], "categorical", list(mean))
    torch.testing.assert_close(
        result.posterior.structure.precision, 2 * now + 1.2 * torch.eye(size, dtype=torch.float64)
    )
    assert (result.posterior.n, result.posterior.ess) == (10, 20)


def test_kronecker_factors_of_a_single_example_are_those_of_that_example():
    net, (x, y) = network(), classes(2)
    posterior = po.laplace(net, (x, y), structure="kron", prior_precision=1.0, temperature=1.0)
    result = adapt(net, posterior, data=(x, y), remove=[0], memory=2, epochs=1)
    wanted = po.laplace(result.model, (x[1:], y[1:]), structure="kron", prior_precision=1.0, temperature=1.0).structure
    found = result.posterior.structure
    torch.testing.assert_close(found.precision_matrix(), wanted.precision_matrix())


def test_weights_of_a_discounted_past_are_what_its_examples_represent():
    net, (x, y) = network(), classes(30)
    posterior = po.laplace(net, (x, y), structure="diag", prior_precision=1.0)
    past = Past.of(net, posterior, remember(net, (x[:9], y[:9]), weights=torch.full((9,), 3.0)))
    assert past.discounted(0.25).weights.tolist() == pytest.approx([0.75] * 9)
    assert past.discounted(0.25).standing().weights.tolist() == pytest.approx([0.75] * 9)


def test_functional_priors_with_the_identity_are_half_the_squares():
    net, (x, y) = network(), classes(20)
    posterior = po.laplace(net, (x, y), structure="diag", prior_precision=1.0)
    penalty = fromp(net, [remember(net, (x, y))], posterior, kernels="identity")
    old = net(x).softmax(-1).detach()
    with torch.no_grad():
        net[2].bias += torch.tensor([0.5, 0.0, -0.5])
    wanted = 0.5 * (net(x).softmax(-1) - old).square().sum().item()
    assert penalty.total(net).item() == pytest.approx(wanted)


def test_ewc_counts_as_much_as_its_gaussian_unless_told_otherwise():
    model = nn.Linear(2, 2)
    strategy = EWC({"epochs": 1})
    assert strategy.penalty(model, 5) is None
    strategy.anchor = Diagonal(
        {k: p + 1 for k, p in trainable(model).items()}, dict.fromkeys(trainable(model), torch.tensor(3.0))
    )
    assert strategy.penalty(model, 5).total(model).item() == pytest.approx(
        Quadratic(strategy.anchor).total(model).item()
    )
    strategy.strength = 2.0
    assert strategy.penalty(model, 5).total(model).item() == pytest.approx(18.0)  # 2 · ½ · 3 · 6


def test_coresets_are_learnt_once_and_before_anything_is_predicted(monkeypatch):
    task = toy(per_class=10, count=1)[0]
    model, strategy = nn.Linear(2, 2), VCL({"epochs": 1}, coreset=4)
    strategy.learn(model, task, 0)
    assert len(strategy.memories[0]) == 4
    learnt = []
    refine = VCL._with_coresets
    monkeypatch.setattr(VCL, "_with_coresets", lambda self, copy: learnt.append(copy) or refine(self, copy))
    first = strategy.probabilities(model, task.test)
    assert len(learnt) == 1
    assert learnt[0] is not model
    assert torch.equal(strategy.probabilities(model, task.test), first)
    assert len(learnt) == 1
    strategy.learn(model, task, 1)
    strategy.probabilities(model, task.test)
    assert len(learnt) == 2


def test_the_pull_of_unseen_examples_is_a_covariance():
    """(w − 1) cov[1(y in the group), ∂ℓ/∂f] over labels drawn from the old model."""
    x, y = classes(6)
    f = torch.randn(6, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    law = likelihood("categorical")
    memory = po.posterior.Memory(x, y, torch.arange(6), torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 0.5]), f)
    found = Others.of(lambda batch: batch.targets == 2, memory, law)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.stack([law.sample(f, generator) for _ in range(DRAWS)])
    for i, w in enumerate((1.0, 2.0, 3.0, 4.0, 5.0, 0.5)):
        inside = (drawn[:, i] == 2).double().numpy()
        for k in range(3):
            e = (f[i].softmax(-1)[k] - (drawn[:, i] == k).double()).numpy()
            wanted = max(w - 1, 0) * np.cov(inside, e, ddof=0)[0, 1]
            assert found.residuals[i, k].item() == pytest.approx(wanted, abs=1e-12)
    assert found.labels.tolist() == [2]


def test_small_batches_have_old_rows_too():
    x = torch.zeros(1000, 1)
    task = Corrected(Batch(x, x, torch.arange(1000)), 10, GaussianLikelihood(), None, 1.0)
    for rows, shares in task.batches(4, 5, 0):
        assert int((rows < 990).sum()) == 1
        assert shares.sum().item() == pytest.approx(1)


@pytest.mark.parametrize(
    ("values", "taken", "kept"),
    [
        ((100.0, 99.95, 0.0), 4, 1),
        ((100.0, 99.8, 99.7), 7, 2),
        ((100.0, 101.0, 0.0), 4, 0),
        ((100.0, 99.0, 100.0), 7, 1),
    ],
)
def test_the_second_half_follows_where_the_first_gained_a_thousandth(values, taken, kept, monkeypatch):
    """And the weights with the lowest objective are kept."""
    seen, told = [], iter(values)
    monkeypatch.setattr(
        Corrected, "value", lambda self, model: seen.append(model.weight.detach().clone()) or next(told)
    )
    model = nn.Linear(1, 1, bias=False)
    data = Batch(torch.ones(8, 1), torch.ones(8, 1), torch.arange(8))
    prior = Diagonal({"weight": torch.zeros(1, 1)}, {"weight": torch.zeros(())})
    task = Corrected(data, 0, GaussianLikelihood(), prior, 1.0)
    assert descend(model, task, Schedule(7, 0.1, 4), 0) == taken
    assert torch.equal(model.weight, seen[kept])


def test_weights_that_are_all_kept_need_no_new_ones():
    found = problem(remove=[0])
    found.new[0].reset_parameters = None  # as a module without the method
    before = snapshot(trainable(found.new))
    set_out(found, Schedule(1, 0.1, 8, kept=1.0), 0)
    assert all(torch.equal(p, before[name]) for name, p in found.new.named_parameters())


def test_a_head_is_found_with_one_example():
    net = network()
    assert find_head(net, torch.zeros(1, 4).double()).name == "2"
    assert find_head(nn.Sequential(nn.Linear(4, 2), nn.Softmax(-1)), torch.zeros(1, 4)) is None


def test_chunks_of_another_precision_are_refused_as_such():
    stream = po.Stream(perceptron(2, 3, 1), likelihood="bernoulli")
    with pytest.raises(InvalidInput, match=r"inputs: expected the dtype of the model, torch\.float32"):
        stream.learn((torch.zeros(4, 2).double(), torch.zeros(4, 1)))


def test_the_report_says_what_it_set_out_from_and_how_long_it_took():
    model, posterior, data = trained(False)
    started = time.perf_counter()
    near = adapt(model, posterior, data=data, remove=[0], epochs=1).report
    assert 0 < near.seconds < time.perf_counter() - started
    assert near.why.endswith(", from the old weights")
    again = adapt(model, posterior, data=data, remove=range(20), lr=1e-6).report
    assert again.why.endswith(", from mostly new weights")
    assert adapt(model, posterior, memory=remember(model, data), remove=[0], epochs=1).report.why.endswith(
        "represent them"
    )
    assert "objective: " in "\n".join(near.legend)
    assert "Adapted by warm_start (approximate" in repr(near)


def test_the_training_of_an_adapted_network_is_recorded():
    model, posterior, data = trained(False)
    assert adapt(model, posterior, data=data, remove=[0], epochs=1).posterior.training == TRAINING


def test_silenced_outputs_are_looked_at_on_some_rows_alone(monkeypatch):
    looked = []
    monkeypatch.setattr(
        warm_start, "outputs_of", lambda model, batch: looked.append(len(batch)) or torch.zeros(len(batch), 3)
    )
    model, posterior, data = trained(True, n=1500)
    adapt(model, posterior, data=data, remove=lambda batch: batch.targets == 2, epochs=1)
    assert looked == [1000]  # all that are left, up to 1024


def test_evidence_is_asked_of_networks_by_their_predictions():
    net, (x, y) = network(), classes(40)
    posterior = po.laplace(net, (x, y), structure="diag", prior_precision=1.0)
    drift = adapt(net, posterior, add=(x, y), forget="auto", epochs=1).report.drift
    scores = {g: po.predict(net, posterior.discounted(g), x, 32).log_prob(y).sum().item() for g in drift.evidence}
    best = max(scores.values())
    assert drift.evidence == pytest.approx({g: s - best for g, s in scores.items()})
    with pytest.raises(InvalidInput, match="where classes are new"):
        adapt(net, posterior, add=(x, y + 1), classes=4, forget="auto")


def test_the_bound_is_the_gradient_over_the_weakest_prior():
    x, y = logistic(60)
    model, posterior = glm(newton_logistic(x, y, 0.7)[0], x, precision=0.7)
    report = adapt(model, posterior, data=(x, y), remove=[0], memory=20).report
    assert report.bound == pytest.approx(report.gradient / 0.7)
    away = torch.tensor(newton_logistic(x[1:], y[1:], 0.7)[0])
    adapted = adapt(model, posterior, data=(x, y), remove=[0], memory=20).model
    assert (to_vector(trainable(adapted)).detach() - away).norm().item() <= report.bound
