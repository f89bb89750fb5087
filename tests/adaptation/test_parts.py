"""Parts of an adaptation against the same sums written out: the report, evidence for forgetting, the past."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Categorical, MultivariateNormal, kl_divergence
from torch.utils.data import DataLoader, TensorDataset

import posterity as po
from adaptation.problems import around, classes, glm, logistic, network, newton_logistic, newton_softmax, some
from networks import perceptron
from posterity.adaptation import _adapt, adapt, remember, select
from posterity.adaptation.changes import Request
from posterity.adaptation.past import Past, cover
from posterity.adaptation.report import distance, objective, objective_gradient, row
from posterity.adaptation.resolve import resolve
from posterity.adaptation.solve.drift import Drift
from posterity.batches import Batch
from posterity.errors import InvalidInput
from posterity.likelihoods import likelihood
from posterity.posterior import Diagonal, Full, LastLayer, Posterior
from posterity.trees import snapshot, trainable

# ── the report ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_objective_of_retraining_and_its_gradient_are_those_of_autograd():
    model, data = network(), some()
    prior, law = around(model), likelihood("categorical")
    loss = nn.functional.cross_entropy(model(data.inputs), data.targets, reduction="sum")
    total = loss + 1.7 * sum((p - 0.3).square().sum() for p in model.parameters())  # ½ · 1.7 · 2
    assert objective(model, data, law, prior, 1.7) == pytest.approx(total.item())
    wanted = torch.cat([g.reshape(-1) for g in torch.autograd.grad(total, list(model.parameters()))])
    torch.testing.assert_close(objective_gradient(model, data, law, prior, 1.7), wanted)


def test_a_row_of_the_report_has_losses_accuracies_and_the_divergence_from_the_old_model():
    old, new, data = network(), network(1), some()
    memory = remember(old, (data.inputs, data.targets), weights=torch.arange(1.0, 31.0))
    found = row(new, likelihood("categorical"), data.take(torch.arange(10)), data.take(torch.arange(20, 30)), memory)
    f = new(data.inputs).detach()
    losses, right = (
        nn.functional.cross_entropy(f, data.targets, reduction="none"),
        (f.argmax(1) == data.targets).double(),
    )
    assert found["loss on added"] == pytest.approx(losses[:10].mean().item())
    assert found["loss on removed"] == pytest.approx(losses[20:].mean().item())
    assert found["accuracy on added"] == pytest.approx(right[:10].mean().item())
    assert found["accuracy on removed"] == pytest.approx(right[20:].mean().item())
    each = kl_divergence(Categorical(logits=old(data.inputs)), Categorical(logits=new(data.inputs))).detach()
    weights = torch.arange(1.0, 31.0).double()
    assert found["divergence on memory"] == pytest.approx(((weights * each).sum() / weights.sum()).item())
    assert row(old, likelihood("categorical"), None, None, memory) == {
        "divergence on memory": pytest.approx(0, abs=1e-12)
    }


def test_distances_between_networks_of_other_shapes_are_not_known():
    a, b = network(), network(1)
    wanted = math.sqrt(sum((p - q).square().sum().item() for p, q in zip(a.parameters(), b.parameters())))
    assert distance(a, b, tuple(trainable(a))) == pytest.approx(wanted)
    assert distance(a, b, ("2.bias",)) == pytest.approx((a[2].bias - b[2].bias).norm().item())
    assert math.isnan(distance(a, perceptron(4, 6, 3), ("0.weight",)))
    assert math.isnan(distance(a, b, ("0.weight", "9.weight")))


@pytest.mark.parametrize(("after", "warns"), [(100.9, False), (101.1, True), (50.0, False)])
def test_an_objective_that_rose_by_a_percent_is_noted(after, warns):
    rows = {"no adaptation": {"objective": 100.0}, "adapted": {"objective": after}}
    assert bool(list(_adapt._worse(rows, exact=False))) == warns
    assert not list(_adapt._worse({"no adaptation": {}, "adapted": {"objective": 5.0}}, exact=False))


def test_passes_count_every_look_at_the_rows():
    """A Newton step looks at them for its gradient and for its Hessian, and so does the end."""
    x, y = logistic(60)
    model, posterior = glm(newton_logistic(x, y, 1.0)[0], x)
    report = adapt(model, posterior, data=(x, y), remove=[0, 1, 2]).report
    assert report.exact
    assert report.passes == pytest.approx(2 * (report.steps + 1))
    assert report.memory == (60, 57)
    assert report.removed.tolist() == [0, 1, 2]
    assert report.added.tolist() == []
    assert report.represented == 60


def test_the_report_of_a_class_that_goes_has_the_objective_of_linear_models_alone():
    """The output of a network is silenced, far below what a prior expects; that of a linear model is solved for."""
    x, y = classes(60)
    model, posterior = glm(newton_softmax(x, y, 1.0, 3), x, likelihood="categorical")
    assert "objective" in adapt(model, posterior, data=(x, y), remove=lambda b: b.targets == 2).report.table
    net = network()
    flat = po.laplace(net, (x, y), structure="diag", prior_precision=1.0)
    found = adapt(net, flat, data=(x, y), remove=lambda b: b.targets == 2, epochs=1).report
    assert "objective" not in found.table
    assert "objective" in adapt(net, flat, data=(x, y), remove=[0], epochs=1).report.table


def test_alternatives_get_the_processor_time_that_the_adaptation_took(monkeypatch):
    seconds = []
    monkeypatch.setattr(_adapt, "alternatives", lambda problem, used, seed: seconds.append((used, seed)) or ({}, []))
    monkeypatch.setattr(_adapt.time, "process_time", iter([100.0, 100.25]).__next__)
    x, y = logistic(20)
    model, posterior = glm(newton_logistic(x, y, 1.0)[0], x)
    adapt(model, posterior, data=(x, y), remove=[0], compare=True)
    assert seconds == [(0.25, 0)]  # and the seed, which is 0 unless given


@pytest.mark.parametrize(
    ("drift", "against", "found", "words"),
    [
        (Drift(0.3, {}), 0.0, False, "30% of the past is forgotten, as asked for"),
        (Drift(0.0, {0.0: 0.0, 1.0: -5.0}), 0.0, False, "no change"),
        (Drift(0.5, {0.0: -3.0, 0.5: 0.0}), 3.0, False, "no clear change: 50% .* 3.0 nats better"),
        (Drift(0.5, {0.0: -3.1, 0.5: 0.0}), 3.1, True, "the data have changed: 50% .* 3.1 nats better"),
    ],
)
def test_a_drift_is_clear_beyond_three_nats(drift, against, found, words):
    assert drift.against_keeping == pytest.approx(against)
    assert drift.found == found
    assert re.match(words, str(drift))


# ── forgetting ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_evidence_for_forgetting_is_that_of_linear_regression():
    """log p(y_new) under N(m, P⁻¹), P = P₀ + (1 − γ) β XᵀX: a Gaussian, for every share γ."""
    generator = torch.Generator().manual_seed(0)
    x, new = torch.randn(2, 25, 3, generator=generator, dtype=torch.float64)
    w = torch.tensor([[1.0, -1.0, 0.5]], dtype=torch.float64)
    y = x @ w.T + 0.5 * torch.randn(25, 1, generator=generator, dtype=torch.float64)
    later = new @ (w.T + 0.6) + 0.5 * torch.randn(25, 1, generator=generator, dtype=torch.float64)
    model = nn.Linear(3, 1, bias=False, dtype=torch.float64)
    precision = 4.0 * x.T @ x + 0.7 * torch.eye(3, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(torch.linalg.solve(precision, 4.0 * x.T @ y).T)
    mean = snapshot(trainable(model))
    posterior = Posterior.of(
        model, Full(mean, precision), prior=Diagonal.isotropic(mean, 0.7), n=25, ess=25,
        likelihood=likelihood("gaussian", precision=4.0),
    )  # fmt: skip
    drift = adapt(model, posterior, data=(x, y), add=(new, later), forget="auto").report.drift

    def evidence(rate):
        kept = 0.7 * torch.eye(3, dtype=torch.float64) + (1 - rate) * 4.0 * x.T @ x
        centre = torch.linalg.solve(kept, (1 - rate) * 4.0 * x.T @ y)
        spread = new @ torch.linalg.inv(kept) @ new.T + torch.eye(25, dtype=torch.float64) / 4.0
        return MultivariateNormal((new @ centre)[:, 0], spread).log_prob(later[:, 0]).item()

    wanted = {rate: evidence(rate) for rate in drift.evidence}
    best = max(wanted.values())
    assert drift.forget == max(wanted, key=wanted.get)
    known = {rate: value - best for rate, value in wanted.items()}
    assert drift.evidence == pytest.approx(known, abs=1e-6)  # weights of a memory are float32
    assert {0.0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95, 1.0} == set(drift.evidence)


@pytest.mark.parametrize("forget", [-0.1, 1.1, "often", True, None])
def test_a_share_that_is_none_is_refused(forget):
    x, y = logistic(10)
    model, posterior = glm(np.zeros(4), x)
    with pytest.raises(InvalidInput, match=r"forget: expected a number in \[0, 1\] or 'auto'"):
        adapt(model, posterior, data=(x, y), add=(x, y), forget=forget)


def test_all_can_only_be_forgotten_where_something_is_new():
    x, y = logistic(10)
    model, posterior = glm(np.zeros(4), x)
    for forget in (1.0, "auto"):
        with pytest.raises(InvalidInput, match="forget: expected new data"):
            adapt(model, posterior, data=(x, y), remove=[0], forget=forget)


def test_a_network_that_forgets_all_is_trained_anew_and_not_called_exact():
    net, data = network(), some()
    posterior = po.laplace(net, (data.inputs, data.targets), structure="diag", prior_precision=1.0)
    report = adapt(net, posterior, add=(data.inputs, data.targets), forget=1.0, epochs=1).report
    assert (report.method, report.exact) == ("anew", False)
    assert report.passes == pytest.approx(1.0)


# ── the past ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_past_of_a_warm_start_keeps_what_other_structures_have_no_examples_for():
    net, data = network(), some()
    for structure in ("diag", "kron"):
        posterior = po.laplace(net, (data.inputs, data.targets), structure=structure, prior_precision=1.0)
        memory = remember(net, (data.inputs[:6], data.targets[:6]))
        past = Past.remembered_only(net, posterior, memory, None, torch.ones(0))
        rest = sum(p.sum().item() for p in past.rest.precision_diagonal().values())
        assert (rest > 0) == (structure == "kron")
        assert all((g == 0).all() for g in past.pull.values())
        assert past.standing().weights.tolist() == [1.0] * 6


def test_a_discounted_past_counts_for_less_in_every_part():
    net, data = network(), some()
    posterior = po.laplace(net, (data.inputs, data.targets), structure="full", prior_precision=1.0)
    past = Past.of(net, posterior, remember(net, (data.inputs[:9], data.targets[:9])))
    less = past.discounted(0.25)
    assert past.discounted(1) is past
    torch.testing.assert_close(less.memory.weights, 0.25 * past.memory.weights)
    torch.testing.assert_close(less.weights, 0.25 * past.weights)
    torch.testing.assert_close(less.rest.precision, 0.25 * past.rest.precision)
    for name, g in past.pull.items():
        torch.testing.assert_close(less.pull[name], 0.25 * g)


def test_at_an_optimum_the_data_pull_as_hard_as_the_prior():
    x, y = logistic(40)
    model, posterior = glm(newton_logistic(x, y, 0.8)[0], x, precision=0.8)
    past = Past.of(model, posterior, None)
    wanted = x.T @ (torch.sigmoid(x @ model.weight.T) - y)
    torch.testing.assert_close(past.pull["weight"], wanted.T.detach())


def test_examples_outside_a_memory_take_their_share_from_others_of_their_class():
    """Twelve represent thirty; one more of class 0 comes in, and the others of class 0 represent one fewer."""
    net, data = network(), some()
    posterior = po.laplace(net, (data.inputs, data.targets), structure="diag", prior_precision=1.0)
    memory = select(net, posterior, (data.inputs, data.targets, data.ids), 12)
    outside = next(i for i in range(30) if i not in memory.ids and data.targets[i] == 0)
    found = cover(net, posterior, memory, data.take(torch.tensor([outside])), torch.ones(1, dtype=torch.float64))
    assert found.weights.sum().item() == pytest.approx(30)
    assert found.weights[found.ids == outside].tolist() == [1.0]
    for label in range(3):
        there = found.weights[(found.targets == label)].sum().item()
        assert there == pytest.approx(int((data.targets == label).sum()))


def test_amounts_outside_a_memory_take_their_share_from_all_others():
    net, data = network(), some()
    amounts = Batch(data.inputs, torch.randn(30, 3, dtype=torch.float64), data.ids)
    posterior = po.laplace(net, (amounts.inputs, amounts.targets), likelihood="gaussian", structure="diag")
    memory = select(net, posterior, (amounts.inputs, amounts.targets, amounts.ids), 12, by="random")
    outside = next(i for i in range(30) if i not in memory.ids)
    found = cover(net, posterior, memory, amounts.take(torch.tensor([outside])), torch.ones(1, dtype=torch.float64))
    torch.testing.assert_close(found.weights[:-1], memory.weights * 29 / 30)
    assert found.weights[-1] == 1


def test_examples_that_no_weight_counted_take_nothing_from_others():
    """Twelve that represent twelve of thirty; one of class 0 and one of class 1 come in beside them."""
    net, data = network(), some()
    posterior = po.laplace(net, (data.inputs, data.targets), structure="diag", prior_precision=1.0)
    memory = select(net, posterior, (data.inputs, data.targets, data.ids), 12, weighted=False)
    outside = [next(i for i in range(30) if i not in memory.ids and data.targets[i] == label) for label in (0, 1)]
    found = cover(net, posterior, memory, data.take(torch.tensor(outside)), torch.ones(2, dtype=torch.float64))
    torch.testing.assert_close(found.weights, torch.ones(14))


@pytest.mark.parametrize(("share", "note"), [(1.0, False), (0.9, True)])
def test_a_memory_that_does_not_represent_all_is_noted_where_a_group_goes(share, note):
    x, y = classes(60)
    model, posterior = glm(newton_softmax(x, y, 1.0, 3), x, likelihood="categorical")
    memory = remember(model, (x, y), weights=torch.full((60,), share))
    notes = adapt(model, posterior, memory=memory, remove=lambda b: b.targets == 2).report.notes
    assert ("the others stay" in notes[0]) == note


def test_data_that_are_shuffled_without_ids_are_refused():
    x, y = logistic(20)
    model, posterior = glm(np.zeros(4), x)
    with pytest.raises(InvalidInput, match="data: expected ids with every example"):
        adapt(model, posterior, data=DataLoader(TensorDataset(x, y), batch_size=5, shuffle=True), remove=[0])


def test_what_learns_where_one_layer_alone_was_uncertain():
    net, data = network(), some()
    mean = snapshot(trainable(net))
    inner = Diagonal(
        {k: mean[k] for k in ("0.weight", "0.bias")}, {k: torch.tensor(9.0) for k in ("0.weight", "0.bias")}
    )
    q = LastLayer(inner, {k: mean[k] for k in ("2.weight", "2.bias")})
    prior = Diagonal.isotropic(mean, 1.0)
    posterior = Posterior.of(net, q, prior=prior, n=30, ess=30, likelihood="categorical")
    request = {"data": (data.inputs, data.targets), "remove": [0]}
    assert resolve(net, posterior, Request(**request), None, 0).prior.names == ("0.weight", "0.bias")
    grows = resolve(net, posterior, Request(**request, classes=4), None, 0)
    assert set(grows.prior.names) == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_a_prior_with_a_number_for_each_weight_keeps_kronecker_factors():
    net, data = network(), some()
    posterior = po.laplace(net, (data.inputs, data.targets), structure="kron", prior_precision=0.6)
    spread = Diagonal(posterior.prior.mean, {k: torch.full_like(m, 0.6) for k, m in posterior.prior.mean.items()})
    given = Posterior.of(net, posterior.structure, prior=spread, n=30, ess=30, likelihood="categorical")
    found = adapt(net, given, data=(data.inputs, data.targets), remove=[0], epochs=1).posterior
    assert found.structure.kind == "kronecker"
    assert [float(p) for p in found.structure.prior_precision.values()] == pytest.approx([0.6] * 4)
