"""The Laplace posterior against laplace-torch, exact Bayesian regression, scikit-learn and statsmodels."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.linear_model import LogisticRegression
from statsmodels.api import GLM, families
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from networks import perceptron
from posterity.curvature import prediction_covariance
from posterity.learning._laplace import laplace
from posterity.learning.marginal_likelihood import log_marginal_likelihood
from posterity.posterior import LastLayer
from posterity.trees import to_vector

PEER = json.loads((Path(__file__).parent / "fixtures" / "laplace_torch.json").read_text())
MODELS = {
    "mlp_classification": lambda: perceptron(3, 4, 3),
    "mlp_regression": lambda: nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 2, bias=False)),
    "conv_classification": lambda: nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Conv2d(2, 2, 2, stride=3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)
    ),
}
STRUCTURES = ("diag", "kron", "full", "last_layer_diag", "last_layer_kron", "last_layer_full")


@pytest.fixture(autouse=True)
def _float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def gaussian(posterior):
    return posterior.structure.inner if isinstance(posterior.structure, LastLayer) else posterior.structure


def relative(found, wanted):
    found, wanted = torch.as_tensor(found), torch.as_tensor(wanted)
    assert found.shape == wanted.shape
    return ((found - wanted).abs().max() / wanted.abs().max()).item()


class Problem:
    def __init__(self, name):
        stored = PEER["problems"][name]
        self.model = MODELS[name]()
        self.model.load_state_dict({k: torch.tensor(v) for k, v in stored["weights"].items()})
        self.data = torch.tensor(stored["inputs"]), torch.tensor(stored["targets"])
        self.test_inputs = torch.tensor(stored["test_inputs"])
        self.noise = PEER["noise_precision"] if stored["kind"] == "regression" else None
        self.peer = stored["structures"]

    def fit(self, structure, prior_precision, **options):
        inner = structure.removeprefix("last_layer_") if structure.startswith("last_layer") else None
        structure = "last_layer" if inner else structure
        options = {"noise_precision": self.noise, "batch_size": 10} | options
        return laplace(
            self.model, self.data, structure=structure, inner=inner, prior_precision=prior_precision, **options
        )


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("name", MODELS)
def test_equals_laplace_torch(name, structure):
    problem, peer = Problem(name), PEER["problems"][name]["structures"][structure]
    posterior = problem.fit(structure, PEER["prior_precision"])
    precision = gaussian(posterior).precision_matrix()
    probes = torch.eye(len(precision))[:, :1] + torch.linspace(-1, 1, 2 * len(precision)).reshape(-1, 2)
    assert relative(precision.diagonal(), peer["precision_diagonal"]) < 1e-10
    assert relative(precision @ probes, peer["precision_times_probes"]) < 1e-10
    covariance = prediction_covariance(problem.model, problem.test_inputs, posterior.covariance())
    assert relative(covariance, peer["predictive_covariance"]) < 1e-10


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("name", MODELS)
def test_marginal_likelihood_equals_laplace_torch(name, structure):
    problem, peer = Problem(name), PEER["problems"][name]["structures"][structure]

    def evidence(prior_precision):
        return log_marginal_likelihood(problem.model, problem.fit(structure, prior_precision), problem.data)

    for delta, wanted in peer["log_marginal_likelihood"].items():
        assert evidence(float(delta)) == pytest.approx(wanted, rel=1e-10)
    names = gaussian(problem.fit(structure, 1.0)).names
    if "layerwise" in peer:
        deltas = {name: 0.1 * (i + 1) for i, name in enumerate(names)}
        assert evidence(deltas) == pytest.approx(peer["layerwise"], rel=1e-10)
    learnt = problem.fit(structure, "marglik").prior.precision[names[0]].item()
    assert learnt == pytest.approx(peer["best_prior_precision"], rel=1e-6)  # as exact as the peer's own search


def linear_regression(delta, beta):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 3))
    y = x @ rng.normal(size=(3, 1)) + 0.7 + 0.3 * rng.normal(size=(30, 1))
    design = np.concatenate([x, np.ones((30, 1))], 1)
    precision = beta * design.T @ design + delta * np.eye(4)
    mean = beta * np.linalg.solve(precision, design.T @ y)
    model = nn.Linear(3, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor(mean[:3].T))
        model.bias.copy_(torch.tensor(mean[3]))
    return model, (torch.tensor(x), torch.tensor(y)), design, y[:, 0], precision


@pytest.mark.parametrize("likelihood", [None, "gaussian"])
def test_bayesian_linear_regression_is_exact(likelihood):
    model, data, design, y, precision = linear_regression(delta=0.7, beta=9.0)
    posterior = laplace(model, data, likelihood=likelihood, structure="full", prior_precision=0.7, noise_precision=9.0)
    marginal = multivariate_normal(np.zeros(30), np.eye(30) / 9.0 + design @ design.T / 0.7)
    assert relative(gaussian(posterior).covariance_matrix(), np.linalg.inv(precision)) < 1e-11
    assert log_marginal_likelihood(model, posterior, data) == pytest.approx(marginal.logpdf(y), abs=1e-9)
    assert posterior.likelihood.precision == 9.0
    assert (posterior.n, posterior.ess) == (30, 30.0)


def test_softmax_regression_equals_scikit_learn_with_the_exact_hessian():
    x, y = load_iris(return_X_y=True)
    x = (x - x.mean(0)) / x.std(0)
    delta = 0.5
    fitted = LogisticRegression(C=1 / delta, fit_intercept=False, tol=1e-10, max_iter=1000).fit(x, y)
    model = nn.Linear(4, 3, bias=False)
    model.weight.data.copy_(torch.tensor(fitted.coef_))
    data = torch.tensor(x), torch.tensor(y)
    posterior = laplace(model, data, structure="full", prior_precision=delta)

    p = fitted.predict_proba(x)
    hessian = sum(np.kron(np.diag(q) - np.outer(q, q), np.outer(row, row)) for q, row in zip(p, x))
    assert relative(gaussian(posterior).precision_matrix(), hessian + delta * np.eye(12)) < 1e-11
    log_joint = np.log(p[np.arange(len(y)), y]).sum() - 0.5 * delta * (fitted.coef_**2).sum()
    occam = 6 * math.log(delta) - 0.5 * np.linalg.slogdet(hessian + delta * np.eye(12))[1]
    assert log_marginal_likelihood(model, posterior, data) == pytest.approx(log_joint + occam, abs=1e-9)


@pytest.mark.parametrize("kind", ["bernoulli", "poisson"])
def test_flat_prior_gives_the_covariance_of_statsmodels(kind):
    x, y = load_breast_cancer(return_X_y=True)
    x = (x[:, :3] - x[:, :3].mean(0)) / x[:, :3].std(0) @ np.array([[1, 0], [0, 1], [0.5, 0]])
    y = y if kind == "bernoulli" else np.random.default_rng(0).poisson(np.exp(0.3 * x[:, 0]))
    fitted = GLM(y, x, {"bernoulli": families.Binomial(), "poisson": families.Poisson()}[kind]).fit(tol=1e-12)
    model = nn.Linear(2, 1, bias=False)
    model.weight.data.copy_(torch.tensor(fitted.params))
    data = torch.tensor(x), torch.tensor(y, dtype=torch.float64).unsqueeze(-1)
    posterior = laplace(model, data, likelihood=kind, structure="full", prior_precision=1e-9)
    assert relative(gaussian(posterior).covariance_matrix(), fitted.cov_params()) < 1e-9


def test_last_layer_equals_full_on_a_frozen_network():
    problem = Problem("mlp_classification")
    last = problem.fit("last_layer_full", 0.4)
    chosen = laplace(problem.model, problem.data, structure="last_layer", prior_precision=0.4)
    for p in problem.model[0].parameters():
        p.requires_grad_(False)
    frozen = problem.fit("full", 0.4)
    assert frozen.names == ("2.weight", "2.bias")
    assert torch.equal(frozen.structure.precision, last.structure.inner.precision)
    assert torch.allclose(chosen.structure.inner.precision, last.structure.inner.precision, rtol=1e-13)
    assert set(last.structure.rest) == {"0.weight", "0.bias"}


def test_last_layer_may_be_named_and_need_not_be_last_in_the_list():
    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 2)
            self.token = nn.Parameter(torch.ones(4))
            self.body = nn.Linear(3, 4)

        def forward(self, x):
            return self.head(torch.tanh(self.body(x)) * self.token)

    model, x = Backwards(), torch.randn(9, 3, generator=torch.Generator().manual_seed(0))
    data = x, x.argmax(-1).clamp_max(1)
    assert laplace(model, data, structure="last_layer").structure.inner.names == ("head.weight", "head.bias")
    named = laplace(model, data, structure="last_layer", last_layer="body")
    assert named.structure.inner.names == ("body.weight", "body.bias")


def test_last_layer_with_many_classes_is_kronecker_and_exact_in_its_factors():
    torch.manual_seed(0)
    classes = 301
    model = perceptron(5, 7, classes)
    x = torch.randn(20, 5)
    posterior = laplace(model, (x, torch.arange(20)), structure="last_layer", prior_precision=1.0)
    features, p = model[:2](x).detach(), torch.softmax(model(x), -1).detach()
    b, a = posterior.structure.inner.factors["2.weight"]
    assert relative(b, torch.diag(p.sum(0)) - p.T @ p) < 1e-12
    assert relative(a, features.T @ features / 20) < 1e-12


@pytest.mark.parametrize("structure", ["diag", "kron", "full", "last_layer"])
def test_batches_loaders_and_samples_of_the_data_change_nothing(structure):
    problem = Problem("conv_classification")
    x, y = problem.data
    whole = laplace(problem.model, (x, y), structure=structure, prior_precision=0.4)
    loader = DataLoader(TensorDataset(x, y), batch_size=5, shuffle=True)
    doubled = laplace(problem.model, (torch.cat([x, x]), torch.cat([y, y])), structure=structure, prior_precision=0.4)
    for data, options, wanted in (
        ((x, y), {"batch_size": 3}, whole),
        (loader, {}, whole),
        ((x, y), {"n": 46}, doubled),
    ):
        found = laplace(problem.model, data, structure=structure, prior_precision=0.4, **options)
        assert found.n == wanted.n
        wanted_precision = gaussian(wanted).precision_matrix()
        assert torch.allclose(gaussian(found).precision_matrix(), wanted_precision, rtol=1e-10, atol=1e-12)


def test_a_loader_that_drops_its_last_batch_still_speaks_for_all_data():
    problem = Problem("mlp_classification")
    x, y = problem.data
    loader = DataLoader(TensorDataset(x, y), batch_size=10, drop_last=True)
    found = laplace(problem.model, loader, structure="full", prior_precision=0.4)
    wanted = laplace(problem.model, (x[:20], y[:20]), structure="full", prior_precision=0.4, n=23)
    assert torch.allclose(found.structure.precision, wanted.structure.precision, rtol=1e-12)


@pytest.mark.parametrize("structure", ["diag", "kron", "full", "last_layer"])
def test_the_model_stays_as_it_was_and_runs_in_evaluation_mode(structure):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 2))
    x = torch.randn(40, 3)
    data = x, (x[:, 0] > 0).long()
    model(x)  # moves the running statistics away from their start
    model[0].bias.requires_grad_(False)
    evaluated = laplace(model.eval(), data, structure=structure, prior_precision=1.0)
    model.train()
    model[3].eval()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    trained = laplace(model, data, structure=structure, prior_precision=1.0)
    assert torch.equal(gaussian(trained).precision_matrix(), gaussian(evaluated).precision_matrix())
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert [m.training for m in model] == [True, True, True, False, True]
    assert [name for name, p in model.named_parameters() if not p.requires_grad] == ["0.bias"]
    assert all(p.grad is None for p in model.parameters())
    assert "0.bias" not in trained.names
    assert torch.equal(trained.buffers["1.running_mean"], model[1].running_mean)


def test_prior_precisions_by_name():
    problem = Problem("mlp_classification")
    deltas = {"0.weight": 1.0, "0.bias": 2.0, "2.weight": 3.0, "2.bias": 4.0}
    curved = problem.fit("full", 1e-300).structure.precision
    for structure in ("diag", "kron", "full"):
        posterior = problem.fit(structure, deltas)
        assert {name: p.item() for name, p in posterior.prior.precision.items()} == deltas
    added = to_vector({name: torch.full_like(p, deltas[name]) for name, p in problem.model.named_parameters()})
    assert relative(posterior.structure.precision, curved + added.diag()) < 1e-14


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
@pytest.mark.parametrize("structure", ["diag", "kron", "full", "last_layer"])
def test_lower_precisions(structure, dtype, tolerance):
    problem = Problem("mlp_classification")
    x, y = problem.data
    wanted = laplace(problem.model, (x, y), structure=structure)
    found = laplace(problem.model.to(dtype), (x.to(dtype), y), structure=structure)
    assert found.prior.precision["2.bias"].item() == pytest.approx(
        wanted.prior.precision["2.bias"].item(), rel=tolerance
    )
    for name, variance in gaussian(wanted).variance.items():
        assert relative(gaussian(found).variance[name].double(), variance) < tolerance


X, Y = torch.zeros(6, 3, dtype=torch.float64), torch.arange(6) % 3
NAN = X.clone().fill_(torch.nan)


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ((X, Y), {"structure": "block"}, r"structure: expected one of .*'last_layer'.*, got 'block'"),
        ((X, Y), {"prior_precision": -1.0}, r"prior_precision of '0.weight': expected a positive .*, got -1"),
        ((X, Y), {"prior_precision": math.nan}, r"prior_precision of '0.weight': expected a positive finite number"),
        ((X, Y), {"prior_precision": "cv"}, r"prior_precision: expected .*'marglik'.*, got 'cv'"),
        ((X, Y), {"prior_precision": {"0.weight": 1.0}}, r"prior_precision: expected a number for each of .*2.bias"),
        ((X, Y), {"prior_precision": "marglik_layerwise", "structure": "full"}, r"expected one for all weights"),
        ((X, Y), {"noise_precision": 2.0}, r"noise_precision: expected a gaussian likelihood.*, got 'categorical'"),
        ((X, X), {"noise_precision": "cv"}, r"noise_precision: expected a positive number or 'marglik', got 'cv'"),
        ((X, X), {"noise_precision": 0.0}, r"noise_precision: expected a positive finite number, got 0"),
        ((X, Y), {"inner": "full"}, r"inner: expected structure='last_layer' beside it, got 'kron'"),
        ((X, Y), {"inner": "low_rank", "structure": "last_layer"}, r"inner: expected one of"),
        ((X, Y), {"last_layer": "2"}, r"last_layer: expected structure='last_layer' beside it, got 'kron'"),
        ((X, Y), {"last_layer": "9", "structure": "last_layer"}, r"last_layer: expected a module among .*, got '9'"),
        ((X, Y), {"last_layer": "1", "structure": "last_layer"}, r"last_layer: expected a module with trainable"),
        ((X, Y), {"n": 0}, r"n: expected a number of examples >= 1, got 0"),
        ((X, Y), {"likelihood": "student"}, r"likelihood: expected one of .*, got 'student'"),
        ((X, Y), {"likelihood": "gaussian"}, r"targets: expected shape \(6, 3\) like the outputs, got \(6,\)"),
        ((X, Y + 1), {}, r"labels: expected integers in 0..2, got 'values from 1 to 3"),
        ((X, X[:, :2]), {}, r"targets: expected shape \(6, 3\) like the outputs, got \(6, 2\)"),
        ((NAN, Y), {}, r"model outputs: expected finite numbers, got 'NaN"),
        ((X, NAN), {}, r"targets: expected finite numbers, got 'NaN"),
        ((X[:0], Y[:0]), {}, r"data: expected at least one example"),
        (DataLoader(TensorDataset(X, Y), batch_size=9, drop_last=True), {}, r"data: expected at least one batch"),
    ],
)  # fmt: skip
def test_bad_input_is_named(data, options, message):
    with pytest.raises(ValueError, match=message):
        laplace(perceptron(3, 4, 3), data, **options)


def test_models_that_cannot_be_fitted_are_named():
    frozen = nn.Linear(3, 3).requires_grad_(False)
    with pytest.raises(ValueError, match="model: expected trainable parameters, got 'none'"):
        laplace(frozen, (X, Y))
    wide = nn.Linear(3, 10_000)
    with pytest.raises(ValueError, match="weights of a full matrix: expected at most 20000"):
        laplace(wide, (X, Y), structure="full")
