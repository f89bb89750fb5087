"""Logistic and softmax regression against true leave-one-out retraining."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression

import posterity as po
from memory.problems import breast_cancer, digits, left_out, linear, newton
from posterity.memory import leave_one_out, memory_map


def pearson(a, b):
    return np.corrcoef(a.flatten(), b.flatten())[0, 1]


def fitted(x, y, delta, likelihood, outputs):
    onehot = y.double() if outputs == 1 else F.one_hot(y).double()
    start = torch.zeros(outputs, x.shape[1], dtype=x.dtype)
    model = linear(newton(x, onehot, delta, start)[0])
    posterior = po.laplace(model, (x, y), structure="full", prior_precision=delta, likelihood=likelihood)
    return model, posterior, onehot


@pytest.mark.parametrize(
    ("delta", "true_nll", "first_nll", "train_nll"),
    [(0.1, 0.11568, 0.0630, 0.03975), (1.0, 0.07514, 0.06568, 0.05332), (10.0, 0.09094, 0.08956, 0.08306)],
)
def test_breast_cancer(delta, true_nll, first_nll, train_nll):
    x, y = breast_cancer()
    model, posterior, onehot = fitted(x, y, delta, "bernoulli", 1)
    retrained = newton(x, onehot, delta, model.weight.detach(), left_out(len(x), torch.arange(len(x))))
    true = (x.unsqueeze(1) @ retrained.mT).squeeze(1)
    found, first = (leave_one_out(model, posterior, (x, y), deflate=d) for d in ("auto", False))
    f = model(x).detach()
    true_change, change = torch.sigmoid(true) - torch.sigmoid(f), found.predictions - torch.sigmoid(f)
    loss = F.binary_cross_entropy_with_logits(true, onehot).item()
    assert loss == pytest.approx(true_nll, rel=3e-3)
    assert found.nll.mean().item() == pytest.approx(loss, rel=0.02)
    assert first.nll.mean().item() == pytest.approx(first_nll, rel=1e-2)
    assert F.binary_cross_entropy_with_logits(f, onehot).item() == pytest.approx(train_nll, rel=1e-2)
    assert pearson(change, true_change) > 0.99
    assert spearmanr(change.abs(), true_change.abs()).statistic > 0.99
    assert pearson(found.outputs - f, true - f) > 0.98
    assert first.reliability.warning
    assert found.error.mean().item() == pytest.approx((torch.sigmoid(true) - onehot).abs().mean().item(), rel=0.02)


def test_scikit_learn_agrees_about_the_weights():
    x, y = breast_cancer()
    model, _, _ = fitted(x, y, 1.0, "bernoulli", 1)
    theirs = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-10, max_iter=10_000).fit(x.numpy(), y[:, 0].numpy())
    assert np.abs(theirs.coef_ - model.weight.detach().numpy()).max() < 1e-5


def test_digits():
    x, y = digits(1797)
    model, posterior, onehot = fitted(x, y, 1.0, "categorical", 10)
    chosen = torch.arange(80)
    retrained = newton(x, onehot, 1.0, model.weight.detach(), left_out(len(x), chosen), fixed=True)
    f, true = model(x[chosen]).detach(), torch.einsum("nd,nkd->nk", x[chosen], retrained)
    found, first = (leave_one_out(model, posterior, (x, y), deflate=d) for d in (True, False))
    true_change = true.softmax(-1) - f.softmax(-1)
    change = found.predictions[chosen] - f.softmax(-1)
    assert found.reliability.effective_dimension == pytest.approx(182.756, abs=1e-3)
    assert found.nll.mean().item() == pytest.approx(0.14364, abs=1e-5)
    assert found.nll.mean().item() == pytest.approx(0.14368, rel=0.02)  # by retraining without each of the 1797
    assert first.nll.mean().item() == pytest.approx(0.13552, abs=1e-5)
    assert pearson(change, true_change) > 0.99
    assert pearson(found.outputs[chosen] - f, true - f) > 0.99
    assert pearson(first.outputs[chosen] - f, true - f) > 0.99
    assert spearmanr(change.abs().sum(-1), true_change.abs().sum(-1)).statistic > 0.99
    assert found.nll[chosen].mean().item() == pytest.approx(F.cross_entropy(true, y[chosen]).item(), rel=0.02)
    assert found.calibration == pytest.approx(po.metrics.ece(found.predictions, y))


def test_removing_a_group():
    x, y = digits(600)
    model, posterior, onehot = fitted(x, y, 1.0, "categorical", 10)
    m = memory_map(model, posterior, (x, y))
    weights = torch.ones(1, 600, dtype=x.dtype)
    weights[0, :30] = 0.0
    true = x @ (newton(x, onehot, 1.0, model.weight.detach(), weights)[0] - model.weight.detach()).T
    estimated = m.what_if(remove=range(30), passes=0)
    first = m.what_if(remove=range(30), deflate=False, passes=0)
    assert pearson(estimated.on((x, y)).change, true) > 0.99
    assert (estimated.on((x, y)).change - true).norm() < 0.5 * (first.on((x, y)).change - true).norm()
    assert estimated.on().ids.tolist() == list(range(30))
    assert estimated.on().loss_change > 0


def test_removing_a_class_is_a_large_change_and_said_to_be():
    x, y = digits(600)
    model, posterior, _ = fitted(x, y, 1.0, "categorical", 10)
    m = memory_map(model, posterior, (x, y))
    change = m.what_if(remove=m.table.query("label == 7")["id"], passes=0)
    assert "leverage" in change.reliability.warning
    assert change.on((x[y == 7], y[y == 7])).loss_change > 1
    assert abs(change.on((x[y != 7], y[y != 7])).loss_change) < 0.1


@pytest.mark.parametrize("structure", ["full", "kron"])
def test_many_new_labels_are_a_large_change_and_said_to_be(structure):
    x, y = digits(600)
    wrong = torch.cat([(y[:60] + 1) % 10, y[60:]])
    model, right = (linear(torch.tensor(_by_scikit_learn(x, labels))) for labels in (wrong, y))
    posterior = po.laplace(model, (x, wrong), structure=structure, prior_precision=1.0)
    m = memory_map(model, posterior, (x, wrong))
    few, many = (m.what_if(relabel={i: int(y[i]) for i in range(count)}, passes=0) for count in (6, 60))
    assert few.reliability.reliable == (structure == "full")  # a Kronecker covariance knows their leverage, no more
    assert ("10% of the data" if structure == "full" else "leverage") in many.reliability.warning
    assert many.reliability.max_leverage > few.reliability.max_leverage > 0  # that of VΛ, though no curvature is lost
    true = (right(x) - model(x)).detach()
    assert (many.on((x, y)).change - true).norm() > 0.3 * true.norm()


def _by_scikit_learn(x, y):
    return LogisticRegression(C=1.0, fit_intercept=False, tol=1e-8, max_iter=10_000).fit(x.numpy(), y.numpy()).coef_


def test_kronecker_groups_of_some_leverage_rank():
    x, y = digits(600)
    model, _, _ = fitted(x, y, 1.0, "categorical", 10)
    m = memory_map(model, po.laplace(model, (x, y), structure="kron", prior_precision=1.0), (x, y))
    change = m.what_if(remove=m.table.query("label == 7")["id"], passes=0)
    assert change.reliability.max_leverage > 0.2
    assert "use only their ranking" in change.reliability.warning


@pytest.mark.parametrize("structure", ["full", "kron", "diag"])
def test_passes_over_the_data_lead_to_retraining_from_any_covariance(structure):
    x, y = digits(300)
    wrong = torch.cat([(y[:30] + 1) % 10, y[30:]])
    model, right = (linear(torch.tensor(_by_scikit_learn(x, labels))) for labels in (wrong, y))
    posterior = po.laplace(model, (x, wrong), structure=structure, prior_precision=1.0)
    m = memory_map(model, posterior, (x, wrong))
    before = model.weight.detach().clone()
    change = m.what_if(relabel={i: int(y[i]) for i in range(30)}, passes=200)
    true = (right(x) - model(x)).detach()
    assert change.reliability.rest < 1e-7
    assert change.reliability.reliable
    assert (change.on((x, y)).change - true).norm() < 1e-3 * true.norm()
    assert torch.equal(model.weight, before)
    with pytest.raises(po.PosterityError, match="passes: expected"):
        m.what_if(remove=[1], passes=-1)


def test_an_estimate_that_leaves_much_of_the_push_is_a_direction():
    x, y = digits(300)
    model, _, _ = fitted(x, y, 1.0, "categorical", 10)
    m = memory_map(model, po.laplace(model, (x, y), structure="diag", prior_precision=1.0), (x, y))
    change = m.what_if(remove=range(100), passes=1)
    found = change.reliability
    assert found.rest > 0.1
    assert "has not converged (residual" in found.warning
    assert not found.ranks
    assert f"; warning: {found.warning})" in str(change.on((x, y)))  # not only where one asks for it
