"""Linear regression, where everything has a closed form: refits, statsmodels, numbers known for diabetes."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm
import torch
from statsmodels.stats.outliers_influence import OLSInfluence

import posterity as po
from memory.problems import diabetes, least_squares, linear, ridge
from posterity.curvature import prediction_covariance
from posterity.likelihoods import GaussianLikelihood
from posterity.memory import dual, leave_one_out
from posterity.memory.groups import Part, shift
from posterity.memory.what_if import what_if
from posterity.posterior import Diagonal, Full, Posterior
from posterity.trees import snapshot, trainable

X, Y = diabetes()


def fitted(delta):
    model = linear(ridge(X, Y, delta))
    posterior = po.laplace(model, (X, Y), structure="full", prior_precision=delta, noise_precision=1.0)
    return model, posterior


def refits(delta):
    """Weights without each example, (N, d)."""
    keep = 1 - torch.eye(len(X), dtype=X.dtype)
    return torch.stack([ridge(X, Y, delta, w) for w in keep])


def test_deviations_are_those_of_refitting():
    model, posterior = fitted(1.0)
    true = (X * refits(1.0)).sum(1, keepdim=True) - model(X).detach()
    found = leave_one_out(model, posterior, (X, Y))
    change = found.outputs - model(X).detach()
    assert (change - true).abs().max() < 1e-10
    assert change[:3, 0].numpy() == pytest.approx([0.012557207, -0.001859574, 0.010929940], abs=1e-9)
    assert change.abs().argmax() == 169
    assert change[169].item() == pytest.approx(0.0990730685, abs=1e-10)
    first = leave_one_out(model, posterior, (X, Y), deflate=False).outputs - model(X).detach()
    assert np.corrcoef(first[:, 0], true[:, 0])[0, 1] == pytest.approx(0.99956, abs=1e-5)
    assert (first - true).abs().max().item() == pytest.approx(0.009333, abs=1e-6)
    assert ((first - true) / true).abs().max().item() == pytest.approx(0.117930, abs=1e-6)  # the largest leverage


@pytest.mark.parametrize(
    ("delta", "nll", "dimension"), [(1.0, 1.1782747859, 10.7377858), (100.0, 1.1784354229, 7.4078051)]
)
def test_bayesian_leave_one_out(delta, nll, dimension):
    model, posterior = fitted(delta)
    found = leave_one_out(model, posterior, (X, Y))
    assert found.predictive_nll.mean().item() == pytest.approx(nll, abs=1e-10)
    assert found.reliability.effective_dimension == pytest.approx(dimension, abs=1e-7)
    assert found.reliability.reliable


def test_press():
    model, posterior = fitted(1.0)
    found = leave_one_out(model, posterior, (X, Y))
    assert found.error.square().sum().item() == pytest.approx(223.6114970752, abs=1e-9)
    assert (model(X) - Y).square().sum().item() == pytest.approx(213.2286837744, abs=1e-9)


def test_reweighting_and_relabelling_one_example():
    model, posterior = fitted(1.0)
    d = dual(model, posterior, (X, Y))
    weights = torch.ones(len(X), dtype=X.dtype)
    weights[7] = 0.3
    lighter = what_if(d.trained, d.ids, 0.0, reweight={7: 0.3})
    assert (lighter.parameters["weight"][0] - (ridge(X, Y, 1.0, weights) - model.weight[0])).abs().max() < 1e-12
    for weight in (weights[7], weights.numpy()[7], np.array(0.3)):
        again = what_if(d.trained, d.ids, 0.0, reweight={7: weight})
        assert torch.equal(again.parameters["weight"], lighter.parameters["weight"])
    y = Y.clone()
    y[7], y[9] = 2.0, -1.0
    renamed = what_if(d.trained, d.ids, 0.0, relabel={7: 2.0, 9: -1.0})
    assert (renamed.parameters["weight"][0] - (ridge(X, y, 1.0) - model.weight[0])).abs().max() < 1e-12


def test_groups_of_all_three_kinds_at_once():
    model, posterior = fitted(1.0)
    d = dual(model, posterior, (X, Y))
    weights, y = torch.ones(len(X), dtype=X.dtype), Y.clone()
    weights[:44], weights[50], weights[60] = 0.0, 3.0, 0.5
    y[60], y[61] = 1.0, 1.5
    change = what_if(d.trained, d.ids, 0.0, remove=range(44), reweight={50: 3.0, 60: 0.5}, relabel={60: 1.0, 61: 1.5})
    expected = ridge(X, y, 1.0, weights)
    assert (change.parameters["weight"][0] - (expected - model.weight[0])).abs().max() < 1e-12
    assert change.passes == 0
    outcome = change.on((X, Y))
    assert (outcome.outputs + outcome.change - X @ expected.unsqueeze(1)).abs().max() < 1e-12
    assert torch.allclose(outcome.loss_before, 0.5 * (model(X) - Y).square()[:, 0] + 0.5 * np.log(2 * np.pi))


def test_group_against_refitting_with_and_without_cross_terms():
    model, posterior = fitted(1.0)
    d = dual(model, posterior, (X, Y))
    true = X[:44] @ (ridge(X[44:], Y[44:], 1.0) - model.weight[0].detach())
    exact = what_if(d.trained, d.ids, 0.0, remove=range(44)).on().change[:, 0]
    first = what_if(d.trained, d.ids, 0.0, remove=range(44), deflate=False).on().change[:, 0]
    single = leave_one_out(model, posterior, (X, Y), deflate=False).outputs[:44, 0] - model(X[:44]).detach()[:, 0]
    assert (exact - true).abs().max() < 1e-12
    assert np.corrcoef(first, true)[0, 1] == pytest.approx(0.99819, abs=1e-5)
    assert ((first @ true) / (first @ first)).item() == pytest.approx(1.172, abs=1e-3)
    assert np.corrcoef(single, true)[0, 1] == pytest.approx(0.405, abs=1e-3)


def test_group_leverage():
    model, posterior = fitted(1.0)
    d = dual(model, posterior, (X, Y))
    part = Part(X[:44], d.residual[:44], d.curvature[:44], d.curvature[:44])
    g, precision = X[:44].T @ X[:44], posterior.structure.precision
    x = (first := shift(d.trained, [part], deflate=False)).parameters["weight"][0]
    assert first.leverage == pytest.approx(((x @ g @ x) / (x @ precision @ x)).item(), abs=1e-10)
    largest = torch.linalg.eigvals(torch.linalg.solve(precision, g)).real.max().item()
    assert shift(d.trained, [part], deflate=True).leverage == pytest.approx(largest, abs=1e-8)


def test_leverage_of_one_example_is_its_own_times_how_far_it_changes():
    model, posterior = fitted(1.0)
    d = dual(model, posterior, (X, Y))

    def leverage(**change):
        return what_if(d.trained, d.ids, 0.0, **change).reliability.max_leverage

    own = d.leverage[7].item()
    assert leverage(remove=[7]) == pytest.approx(own, rel=1e-9)
    assert leverage(reweight={7: 0.75}) == pytest.approx(own / 4, rel=1e-9)
    for slightly in (1e-3, 1.0):  # how far a label is moved makes no difference
        assert leverage(relabel={7: Y[7].item() + slightly}) == pytest.approx(own, rel=1e-9)


def test_statsmodels():
    x, y = X.numpy(), Y[:, 0].numpy()
    influence = OLSInfluence(sm.OLS(y, x).fit())
    model, posterior = least_squares(X, Y, 1 / influence.results.mse_resid)
    d = dual(model, posterior, (X, Y))
    found = leave_one_out(model, posterior, (X, Y))
    leverage = influence.hat_matrix_diag
    assert np.abs(d.leverage.numpy() - leverage).max() < 1e-9
    assert d.leverage.argmax() == 322
    assert d.leverage.max().item() == pytest.approx(0.1276183505, abs=1e-10)
    assert np.abs((Y - found.outputs)[:, 0].numpy() - influence.resid_press).max() < 1e-9


def test_dual_models_are_the_posterior():
    model, posterior = fitted(1.0)
    d = dual(model, posterior, (X, Y))
    assert torch.allclose(d.pseudo_outputs, Y)
    linear_model = d.as_linear_model()
    regression = linear_model.posterior()
    assert (regression.mean["weight"] - model.weight).abs().max() < 1e-12
    assert (regression.precision - posterior.structure.precision).abs().max() < 1e-9
    assert linear_model.log_evidence() == pytest.approx(-542.8356494892, abs=1e-8)
    process, new = d.as_gp(), X[:5] + 0.3
    assert (process.mean(new) - model(new)).abs().max() < 1e-11
    assert (process.covariance(new) - prediction_covariance(model, new, posterior.covariance())).abs().max() < 1e-11


def test_dual_models_of_a_tempered_posterior_have_the_prior_at_temperature_one():
    """ess = n/2 halves the weight of the data, so at temperature 1 the prior counts twice."""
    model, identity = linear(ridge(X, Y, 2.0)), torch.eye(X.shape[1], dtype=X.dtype)
    mean, likelihood = snapshot(trainable(model)), GaussianLikelihood(precision=1.0)
    tempered = Full(mean, 0.5 * X.T @ X + identity)
    prior = Diagonal.isotropic(mean, 1.0)
    posterior = Posterior.of(model, tempered, prior=prior, n=len(X), ess=len(X) / 2, likelihood=likelihood)
    d = dual(model, posterior, (X, Y))
    regression = d.as_linear_model().posterior()
    assert (regression.precision - (X.T @ X + 2 * identity)).abs().max() < 1e-9
    assert (regression.mean["weight"] - model.weight).abs().max() < 1e-11
    process, new = d.as_gp(), X[:5] + 0.3
    exact = torch.einsum("np,pq,nq->n", new, torch.linalg.inv(X.T @ X + 2 * identity), new)
    assert (process.covariance(new)[:, 0, 0] - exact).abs().max() < 1e-11
    assert (process.mean(new) - model(new)).abs().max() < 1e-11
