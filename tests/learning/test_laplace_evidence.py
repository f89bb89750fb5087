"""The marginal likelihood and its maximum against dense linear algebra, autograd and scipy's optimisers."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize, minimize_scalar
from scipy.stats import multivariate_normal
from sklearn.linear_model import BayesianRidge
from torch import nn

from networks import perceptron
from posterity.batches import batches
from posterity.curvature import diagonal_ggn, full_ggn, kronecker_ggn
from posterity.errors import InvalidInput
from posterity.learning._laplace import laplace
from posterity.learning.marginal_likelihood import Evidence, eigenvalues, log_marginal_likelihood
from posterity.likelihoods import GaussianLikelihood

NAMES = ("0.weight", "0.bias", "2.weight", "2.bias")


@pytest.fixture(autouse=True)
def _float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def problem(targets=1):
    """A small network at arbitrary weights: the evidence is about the curvature there, whether a mode or not."""
    torch.manual_seed(0)
    model = perceptron(2, 3, targets)
    x = torch.randn(25, 2)
    return model, (x, (x[:, :1] * x[:, 1:]).expand(-1, targets) + 0.3 * torch.randn(25, targets))


def dense(structure, model, data):
    """The curvature of each structure as a matrix, by numpy from the model's blocks."""
    stream, unit = batches(data), GaussianLikelihood()
    if structure == "full":
        return full_ggn(model, stream, unit).numpy()
    if structure == "diag":
        return np.diag(np.concatenate([h.flatten().numpy() for h in diagonal_ggn(model, stream, unit).values()]))
    blocks = []
    for factors in kronecker_ggn(model, stream, unit).values():
        block = np.eye(1)
        for factor in factors:
            block = np.kron(block, factor.numpy())
        blocks.append(block)
    return torch.block_diag(*map(torch.tensor, blocks)).numpy()


def log_evidence(matrix, model, data, noise, prior):
    """log Z by the definition, from dense matrices; `prior` holds one precision for each weight."""
    theta = np.concatenate([p.detach().flatten().numpy() for p in model.parameters()])
    residuals = (model(data[0]) - data[1]).detach().numpy().ravel()
    log_likelihood = 0.5 * (len(residuals) * np.log(noise / (2 * np.pi)) - noise * (residuals**2).sum())
    log_prior = 0.5 * (np.log(prior / (2 * np.pi)).sum() - (prior * theta**2).sum())
    log_det = np.linalg.slogdet(noise * matrix + np.diag(prior))[1]
    return log_likelihood + log_prior + 0.5 * len(theta) * np.log(2 * np.pi) - 0.5 * log_det


def per_weight(model, deltas):
    return np.concatenate([np.full(p.numel(), d) for p, d in zip(model.parameters(), deltas)])


@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
def test_evidence_by_definition(structure):
    model, data = problem(targets=2)
    matrix = dense(structure, model, data)
    for noise, deltas in ((0.3, (2.0, 2.0, 2.0, 2.0)), (7.0, (0.1, 5.0, 30.0, 0.01))):
        options = {"structure": structure, "noise_precision": noise}
        posterior = laplace(model, data, prior_precision=dict(zip(NAMES, deltas)), **options)
        wanted = log_evidence(matrix, model, data, noise, per_weight(model, deltas))
        assert log_marginal_likelihood(model, posterior, data) == pytest.approx(wanted, abs=1e-9)


def test_evidence_takes_the_posterior_mean_and_scales_a_sample_of_the_data():
    model, data = problem()
    posterior = laplace(model, data, prior_precision=1.0, noise_precision=2.0)
    wanted = log_marginal_likelihood(model, posterior, data)
    half = laplace(model, data, prior_precision=1.0, noise_precision=2.0, n=50)
    twice = tuple(torch.cat([part, part]) for part in data)
    assert log_marginal_likelihood(model, half, data) == pytest.approx(log_marginal_likelihood(model, half, twice))
    nn.init.zeros_(model[0].weight)
    assert log_marginal_likelihood(model, posterior, data, batch_size=4) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
def test_one_prior_precision_and_the_noise_are_where_scipy_finds_them(structure):
    model, data = problem()
    matrix = dense(structure, model, data)
    posterior = laplace(model, data, structure=structure)
    ones = np.ones(len(matrix))
    best = minimize(
        lambda t: -log_evidence(matrix, model, data, np.exp(t[0]), np.exp(t[1]) * ones),
        x0=[0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-13},
    )  # fmt: skip
    found = posterior.likelihood.precision, posterior.prior.precision["0.bias"].item()
    assert found == pytest.approx(tuple(np.exp(best.x)), rel=1e-6)
    assert log_marginal_likelihood(model, posterior, data) == pytest.approx(-best.fun, abs=1e-9)


@pytest.mark.parametrize("structure", ["diag", "kron"])
def test_layerwise_prior_precisions_are_where_scipy_finds_them(structure):
    model, data = problem()
    matrix = dense(structure, model, data)
    posterior = laplace(model, data, structure=structure, prior_precision="marglik_layerwise", noise_precision=3.0)
    best = minimize(
        lambda t: -log_evidence(matrix, model, data, 3.0, per_weight(model, np.exp(t))),
        x0=np.zeros(4), method="BFGS", options={"gtol": 1e-8},
    )  # fmt: skip
    assert [p.item() for p in posterior.prior.precision.values()] == pytest.approx(np.exp(best.x), rel=1e-5)
    assert log_marginal_likelihood(model, posterior, data) == pytest.approx(-best.fun, abs=1e-9)


def test_the_noise_alone_is_learnt_where_the_prior_is_given():
    model, data = problem()
    matrix = dense("kron", model, data)
    deltas = (0.5, 1.0, 2.0, 4.0)
    posterior = laplace(model, data, prior_precision=dict(zip(NAMES, deltas)), noise_precision="marglik")
    prior = per_weight(model, deltas)
    best = minimize_scalar(lambda t: -log_evidence(matrix, model, data, np.exp(t), prior), options={"xtol": 1e-12})
    assert posterior.likelihood.precision == pytest.approx(np.exp(best.x), rel=1e-6)


def test_retraining_between_maximisations_reaches_the_evidence_of_bayesian_ridge():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(40, 5))
    y = x @ np.array([1.0, -2.0, 0.0, 0.0, 0.5]) + 0.4 * rng.normal(size=40)
    model, data = nn.Linear(5, 1, bias=False), (torch.tensor(x), torch.tensor(y).unsqueeze(-1))
    noise, delta = 1.0, 1.0
    for _ in range(30):
        precision = noise * x.T @ x + delta * np.eye(5)
        model.weight.data.copy_(torch.tensor(noise * np.linalg.solve(precision, x.T @ y)))
        posterior = laplace(model, data, structure="full")
        noise, delta = posterior.likelihood.precision, posterior.prior.precision["weight"].item()
    flat = {"alpha_1": 0, "alpha_2": 0, "lambda_1": 0, "lambda_2": 0}
    ridge = BayesianRidge(fit_intercept=False, tol=1e-12, max_iter=1000, **flat).fit(x, y)
    assert (noise, delta) == pytest.approx((ridge.alpha_, ridge.lambda_), rel=1e-6)
    marginal = multivariate_normal(np.zeros(40), np.eye(40) / noise + x @ x.T / delta)
    assert log_marginal_likelihood(model, posterior, data) == pytest.approx(marginal.logpdf(y), abs=1e-6)


def random_evidence(groups=3):
    generator = torch.Generator().manual_seed(5)
    spectra = tuple(10 ** (3 * torch.randn(8, generator=generator)) for _ in range(groups))
    return Evidence(tuple((str(i),) for i in range(groups)), spectra, (0.5, 30.0, 1e-3)[:groups], 90.0, 70.0)


def test_derivatives_equal_autograd():
    evidence = random_evidence()
    x = torch.tensor([0.3, -1.0, 2.0, 4.0])
    gradient, hessian = evidence.derivatives(x[0], x[1:])

    def value(t):
        return evidence(t[0], t[1:])

    assert torch.allclose(gradient, torch.autograd.functional.jacobian(value, x), rtol=1e-12)
    assert torch.allclose(hessian, torch.autograd.functional.hessian(value, x), rtol=1e-12)
    assert (torch.linalg.eigvalsh(hessian) < 0).all()


def test_newton_converges_over_sixty_orders_of_magnitude():
    for spectrum in (1e-30, 1.0, 1e30):
        for distance in (1e-30, 1.0, 1e30):
            evidence = Evidence((("w",),), (torch.full((4,), spectrum),), (distance,), 1.0)
            _, prior = evidence.maximise(1.0, None)
            # γ = δ d with γ = 4 λ/(λ + δ): a quadratic equation in δ
            wanted = (
                2
                * 4
                * spectrum
                / (distance * spectrum + ((distance * spectrum) ** 2 + 16 * distance * spectrum) ** 0.5)
            )
            assert prior["w"] == pytest.approx(wanted, rel=1e-8)


def test_an_evidence_without_a_maximum_is_named():
    model, (x, y) = problem()
    with pytest.raises(InvalidInput, match=r"noise precision: expected residuals .* got a perfect fit"):
        laplace(model, (x, model(x).detach()))
    nn.init.zeros_(model[2].weight)
    nn.init.zeros_(model[2].bias)
    options = {"noise_precision": 1.0, "prior_precision": "marglik_layerwise"}
    with pytest.raises(InvalidInput, match=r"prior precision of \('0.weight',\): .* got no curvature at all"):
        laplace(model, (x, y), **options)
    with pytest.raises(
        InvalidInput, match=r"prior precision of \('2.weight', '2.bias'\): .* weights at the prior mean"
    ):
        laplace(model, (x, y), structure="last_layer", noise_precision=1.0)


def test_a_curvature_beyond_all_numbers_is_named():
    curvature = {"weight": (torch.ones(2, 2), torch.full((3, 3), torch.inf))}
    with pytest.raises(InvalidInput, match=r"curvature: expected finite numbers \(bring the inputs to a scale"):
        eigenvalues(curvature)
