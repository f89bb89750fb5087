"""Linearised and probit predictions against algebra, Jacobians and quadrature."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats
from torch import nn
from torch.func import functional_call, jacrev

from networks import perceptron
from posterity.errors import InvalidInput, Undefined
from posterity.files import save_record
from posterity.learning import laplace
from posterity.posterior import Diagonal, Posterior, store
from posterity.prediction import predict
from posterity.trees import snapshot, to_vector, trainable
from prediction.cases import make_case, regression

GAUSSIANS = ("diagonal", "full", "kronecker", "last_layer")


def test_linear_regression_is_exact():
    case, f, covariance = regression(precision=4.0)
    variance = covariance.diagonal(dim1=1, dim2=2)
    p = predict(*case, method="linearised")
    np.testing.assert_allclose(p.mean, f, atol=1e-12)
    np.testing.assert_allclose(p.std, (variance + 0.25).sqrt(), atol=1e-12)
    predictive = stats.norm(f, (variance + 0.25).sqrt())
    np.testing.assert_allclose(p.quantiles([0.1, 0.9]), [predictive.ppf(0.1), predictive.ppf(0.9)], atol=1e-6)
    np.testing.assert_allclose(p.log_prob(f + 0.5), predictive.logpdf(f + 0.5), atol=1e-12)


def tangent(case):
    """Mean and covariance of the logits from an explicit Jacobian and a dense covariance."""
    model = copy.deepcopy(case.model).eval()
    case.posterior.apply(model)
    gaussian = getattr(case.posterior.structure, "inner", case.posterior.structure)
    weights = {name: p.detach() for name, p in model.named_parameters()}
    buffers = dict(model.named_buffers())
    jacobian = jacrev(lambda w: functional_call(model, weights | w | buffers, (case.inputs,)))(
        {name: weights[name] for name in gaussian.names}
    )
    rows = torch.cat([j.reshape(*j.shape[:2], -1) for j in jacobian.values()], -1)
    return model(case.inputs).detach(), rows @ gaussian.covariance_matrix().double() @ rows.mT


@pytest.mark.parametrize("kind", GAUSSIANS)
def test_logits_are_drawn_from_the_tangent_model(kind):
    case = make_case(kind)
    f, V = tangent(case)
    p = predict(*case, samples=4000, method="linearised", keep_samples=True)
    draws = p.outputs
    error = (V.diagonal(dim1=1, dim2=2) / 4000).sqrt()
    assert ((draws.mean(0) - f).abs() < 5 * error).all()
    deviations = draws - draws.mean(0)
    found = torch.einsum("sbk,sbl->bkl", deviations, deviations) / 4000
    np.testing.assert_allclose(found, V, atol=0.1 * V.abs().max().item())
    np.testing.assert_allclose(p.probs, draws.softmax(-1).mean(0), atol=1e-12)


class Steps(nn.Module):
    """Tokens whose logits read the steps before them."""

    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(5, 4), nn.Linear(4, 3)

    def forward(self, ids):
        return self.out(torch.tanh(self.table(ids).cumsum(1)))


def _map():
    return nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 3, 1))


IDS = torch.arange(8).reshape(2, 4) % 5
PIXELS = torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(2, 2, 2, 3)


@pytest.mark.parametrize(
    ("make", "inputs", "axis", "likelihood"),
    [
        (Steps, IDS, -1, "categorical"),
        (Steps, IDS, -1, "gaussian"),
        (_map, PIXELS, 1, "categorical"),
        (_map, PIXELS, -1, "bernoulli"),
    ],
)
def test_sequences_and_maps_have_the_tangent_model_of_every_position(make, inputs, axis, likelihood):
    torch.manual_seed(0)
    model = make().double()
    mean = snapshot(trainable(model))
    q = Diagonal(mean, {name: 5 + torch.rand_like(t) for name, t in mean.items()})
    posterior = Posterior.of(model, q, prior=q, n=9, ess=9, likelihood=likelihood)
    jacobian = jacrev(lambda w: functional_call(model, w, (inputs,)).movedim(axis, -1))(mean)
    f = model(inputs).detach().movedim(axis, -1)
    rows = torch.cat([j.reshape(*f.shape, -1) for j in jacobian.values()], -1)
    V = rows / to_vector(q.precision) @ rows.mT
    v = V.diagonal(dim1=-2, dim2=-1)
    p = predict(model, posterior, inputs, samples=4000, method="linearised", keep_samples=True)
    deviations = p.outputs - f
    np.testing.assert_allclose(p.outputs.mean(0), f, atol=1e-12)  # pairs ±
    found = torch.einsum("s...k,s...l->...kl", deviations, deviations) / 4000
    np.testing.assert_allclose(found, V, atol=0.1 * V.abs().max().item())
    if likelihood == "gaussian":
        np.testing.assert_allclose(p.std, (v + 1).sqrt(), atol=1e-12)
        return
    link = (lambda t: t.softmax(-1)) if likelihood == "categorical" else torch.sigmoid
    np.testing.assert_allclose(p.probs, link(p.outputs).mean(0), atol=1e-12)
    moderated = predict(model, posterior, inputs, method="probit").probs
    np.testing.assert_allclose(moderated, link(f / (1 + torch.pi / 8 * v).sqrt()), atol=1e-12)


@pytest.mark.parametrize("kind", GAUSSIANS)
def test_probit_divides_logits_by_their_own_variance(kind):
    case = make_case(kind)
    f, V = tangent(case)
    moderated = f / torch.sqrt(1 + torch.pi / 8 * V.diagonal(dim1=1, dim2=2))
    np.testing.assert_allclose(predict(*case, method="probit").probs, moderated.softmax(-1), atol=1e-6)


def test_binary_probabilities_match_quadrature():
    case, f, covariance = regression("bernoulli")
    sigma = covariance.diagonal(dim1=1, dim2=2).sqrt()

    def average(mean, scale):
        return integrate.quad(lambda t: special.expit(mean + scale * t) * stats.norm.pdf(t), -9, 9)[0]

    exact = np.vectorize(average)(f.numpy(), sigma.numpy())
    np.testing.assert_allclose(predict(*case, method="probit").probs, exact, atol=0.01)
    np.testing.assert_allclose(predict(*case, samples=8000, method="linearised").probs, exact, atol=0.015)


@pytest.mark.parametrize("method", ["linearised", "probit"])
def test_the_batch_size_changes_nothing(method):
    case = make_case("kronecker")
    whole, pieces = (predict(*case, samples=5, method=method, batch_size=size) for size in (100, 4))
    np.testing.assert_allclose(whole.log_probs, pieces.log_probs, atol=1e-6)


def test_draws_that_come_one_by_one_are_the_same(monkeypatch):
    case = make_case("kronecker")
    whole = predict(*case, samples=5, method="linearised", keep_samples=True)
    monkeypatch.setattr("posterity.prediction._linearised.ROOM", 1)
    pieces = predict(*case, samples=5, method="linearised", keep_samples=True)
    np.testing.assert_allclose(pieces.outputs, whole.outputs, atol=1e-12)
    np.testing.assert_allclose(pieces.log_probs, whole.log_probs, atol=1e-12)
    np.testing.assert_allclose(pieces.std, whole.std, atol=1e-12)


def test_what_has_no_draws_says_so():
    case = make_case("diagonal")
    p = predict(*case, method="probit")
    assert torch.isfinite(p.entropy).all()
    for ask in (lambda: p.std, lambda: p.aleatoric, lambda: p.mutual_information, lambda: p.quantiles(0.5)):
        with pytest.raises(Undefined):
            ask()
    with pytest.raises(InvalidInput, match="keep_samples"):
        predict(*case, method="probit", keep_samples=True)


@pytest.mark.parametrize("kind", ["ensemble", "dropout", "mixture"])
def test_structures_without_a_covariance_say_so(kind):
    with pytest.raises(Undefined, match=kind):
        predict(*make_case(kind), method="linearised")


def test_other_likelihoods_say_so():
    case, _, _ = regression()
    with pytest.raises(InvalidInput, match="expected a bernoulli or categorical likelihood, got 'gaussian'"):
        predict(*case, method="probit")
    with pytest.raises(InvalidInput, match="samples: expected a whole number >= 1, got 0"):
        predict(*make_case("diagonal"), samples=0, method="linearised")


def test_half_precision_models_answer_in_float32():
    model = nn.Linear(4, 3).bfloat16()
    mean = snapshot(trainable(model))
    q = Diagonal(mean, {name: torch.tensor(100.0) for name in mean})
    posterior = Posterior.of(model, q, prior=q, n=9, ess=9, likelihood="categorical")
    assert predict(model, posterior, torch.randn(5, 4).bfloat16(), method="linearised").probs.dtype == torch.float32


@pytest.mark.parametrize("kind", GAUSSIANS)
@pytest.mark.parametrize("method", ["linearised", "probit"])
def test_a_posterior_answers_for_a_model_in_another_precision(kind, method):
    model, posterior, inputs = make_case(kind)
    wanted = predict(model, posterior, inputs, method=method).probs
    found = predict(model.float(), posterior, inputs.float(), method=method).probs
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_a_graph_that_waits_for_its_backward_pass_stays_valid():
    case = make_case("diagonal")
    loss = case.model.eval()(case.inputs).square().sum()
    predict(*case, method="linearised")
    loss.backward()
    assert case.model[0].weight.grad.abs().sum() > 0


def test_autocast_forgets_the_weights_that_were_there():
    model, posterior, inputs = make_case("diagonal")
    model, inputs = model.float(), inputs.float()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1.0)
    wanted = predict(model, posterior, inputs, method="probit").probs
    with torch.autocast("cpu"):
        before = model.eval()(inputs)
        found = predict(model, posterior, inputs, method="probit").probs
        after = model(inputs)
    np.testing.assert_allclose(found, wanted, atol=0.02)
    assert torch.equal(before, after)


def test_weights_and_mode_come_back_even_after_an_error():
    case = make_case("diagonal")
    with torch.no_grad():
        for p in case.model.parameters():
            p.add_(1.0)
    before = {name: t.clone() for name, t in case.model.state_dict().items()}
    predict(*case, method="linearised")
    with pytest.raises(InvalidInput, match="expected what the model takes"):
        predict(case.model, case.posterior, torch.zeros(3, 5).double(), method="linearised")
    assert case.model.training
    assert case.model[1].training
    assert all(bool((t == before[name]).all()) for name, t in case.model.state_dict().items())
    assert to_vector(dict(case.model.named_parameters())).requires_grad


@pytest.mark.parametrize("method", ["sampled", "linearised", "probit"])
def test_a_model_that_the_posterior_does_not_belong_to_is_named(method):
    case = make_case("diagonal")
    with pytest.raises(InvalidInput, match=r"model: expected a parameter '0.weight' of shape \(6, 4\)"):
        predict(nn.Linear(4, 3).double(), case.posterior, case.inputs, method=method)


def test_the_method_follows_the_posterior(tmp_path):
    torch.manual_seed(0)
    x, y = torch.randn(60, 3), torch.randint(0, 2, (60,))
    model = perceptron(3, 4, 2)
    posterior = laplace(model, (x, y), structure="diag", prior_precision=1.0)
    assert posterior.predictive == "linearised"
    posterior.save(tmp_path / "kept")
    for one in (posterior, Posterior.load(tmp_path / "kept")):
        followed = predict(model, one, x, 8).probs
        assert torch.equal(followed, predict(model, one, x, 8, method="linearised").probs)
        assert not torch.equal(followed, predict(model, one, x, 8, method="sampled").probs)
    at_mean = predict(model, posterior, x, 0).probs
    torch.testing.assert_close(at_mean, model(x).softmax(-1).detach())
    plain = replace(posterior, predictive="sampled")
    assert torch.equal(predict(model, plain, x, 8).probs, predict(model, plain, x, 8, method="sampled").probs)


def test_files_without_the_method_predict_as_before(tmp_path, monkeypatch):
    def without(folder, name, *, content, **rest):
        save_record(folder, name, content={k: v for k, v in content.items() if k != "predictive"}, **rest)

    model = nn.Linear(2, 2)
    prior = Diagonal.isotropic(snapshot(trainable(model)), 1.0)
    monkeypatch.setattr(store, "save_record", without)
    posterior = Posterior.of(model, prior, prior=prior, n=5, ess=5, likelihood="categorical", predictive="linearised")
    posterior.save(tmp_path / "old")
    assert Posterior.load(tmp_path / "old").predictive == "sampled"
