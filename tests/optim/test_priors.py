"""General diagonal priors, extra terms, and the posterior handed over."""

import numpy as np
import pytest
import torch
from torch import nn

from optim.conformance import Problem, all_optimizers, at_the_mean
from optim.reference import Reference, array, data, loss, network
from posterity.errors import InvalidInput
from posterity.optim import IVON, MixtureIVON
from posterity.posterior import Diagonal

pytestmark = pytest.mark.usefixtures("arithmetic")

SETTINGS = {"lr": 0.2, "ess": 50, "hess_init": 0.5, "betas": (0.9, 0.9)}


def random_prior(model, seed=1):
    generator = torch.Generator().manual_seed(seed)
    mean = {name: torch.randn(p.shape, generator=generator) for name, p in model.named_parameters()}
    precision = {name: 1 + 20 * torch.rand(p.shape, generator=generator) for name, p in model.named_parameters()}
    return Diagonal(mean, precision)


def test_a_prior_takes_the_place_of_weight_decay():
    model = network().double()
    prior = random_prior(model)
    optimizer = IVON(model.named_parameters(), **SETTINGS, rescale_lr=False, prior=prior)
    references = {
        name: Reference(
            array(p),
            **SETTINGS,
            rescale_lr=False,
            weight_decay=array(prior.precision[name]) / 50,
            prior_mean=array(prior.mean[name]),
        )
        for name, p in model.named_parameters()
    }
    inputs, targets = data()
    for _ in range(10):
        with optimizer.sampled_params(train=True):
            samples = {name: array(p) for name, p in model.named_parameters()}
            loss(model, inputs.double(), targets).backward()
        optimizer.step()
        for name, p in model.named_parameters():
            reference, gradient = references[name], array(p.grad)
            reference.step(gradient, reference.estimate(samples[name], gradient))
            np.testing.assert_allclose(array(p), reference.mean, rtol=1e-6)
            np.testing.assert_allclose(array(optimizer.state[p]["hessian"]), reference.hessian, rtol=1e-6)
        optimizer.zero_grad()
    posterior = optimizer.posterior(model, likelihood="categorical", n=50)
    for name in posterior.names:
        precision = 50 * references[name].hessian + array(prior.precision[name])
        np.testing.assert_allclose(array(posterior.structure.precision[name]), precision, rtol=1e-6)
        torch.testing.assert_close(posterior.prior.mean[name].float(), prior.mean[name])


def trained(make, prepare, **options):
    """An optimizer after some steps, and its weights; None if it refuses to be prepared."""
    problem = Problem()
    optimizer = make(problem.named, **options)
    try:
        prepare(optimizer, {name: p.detach().clone() for name, p in problem.named})
    except InvalidInput:
        return None
    for _ in range(5):
        optimizer.step(problem.closure(optimizer))
    return optimizer, problem.weight


def with_prior(optimizer, weights):
    optimizer.set_prior(Diagonal({n: w + 5 for n, w in weights.items()}, {n: 0 * w + 1000 for n, w in weights.items()}))


def with_term(optimizer, weights):
    optimizer.set_term(*({n: size * torch.ones_like(w) for n, w in weights.items()} for size in (0.0, 1e7)))


@at_the_mean
@all_optimizers
def test_a_prior_is_refused_or_felt(make):
    (_, plain), prepared = trained(make, lambda *_: None), trained(make, with_prior)
    assert prepared is None or not torch.allclose(prepared[1], plain, atol=1e-3)


@at_the_mean
@all_optimizers
def test_a_term_is_refused_or_felt_by_the_precision(make):
    (plain, _), prepared = trained(make, lambda *_: None, lr=0.0), trained(make, with_term, lr=0.0)
    assert prepared is None or prepared[0].diagnostics().sigma[1] < 0.99 * plain.diagnostics().sigma[1]


def test_a_mixture_has_one_prior():
    model = network()
    optimizer, weights = MixtureIVON([model], lr=0.1, ess=10), {f"0.{n}": p for n, p in model.named_parameters()}
    for prepare in (with_prior, with_term):
        with pytest.raises(InvalidInput, match="in its equations, got 'MixtureIVON'"):
            prepare(optimizer, weights)


def orthogonal_regression():
    """Two halves of a regression with orthogonal inputs, where the diagonal Gaussian is exact; unit noise."""
    torch.manual_seed(0)
    inputs = torch.linalg.qr(torch.randn(40, 3, dtype=torch.float64))[0] * torch.tensor([4.0, 3.0, 2.0])
    targets = inputs @ torch.tensor([1.0, -0.5, 0.3], dtype=torch.float64) + torch.randn(40, dtype=torch.float64)
    halves = (inputs, targets), (inputs.flip(0), -targets.flip(0) + 0.5)
    return halves, 2.0  # the prior's precision


def fit(inputs, targets, linear=None, quadratic=None, **options):
    """IVON on 200 copies of the regression weights; the average precision, and the mean."""
    weights = nn.Parameter(torch.zeros(200, 3, dtype=torch.float64))
    optimizer = IVON([("w", weights)], lr=0.5, ess=len(targets), **options)
    if linear is not None:
        optimizer.set_term({"w": linear.expand(200, 3)}, {"w": quadratic.expand(200, 3)})
    for t in range(800):
        optimizer.param_groups[0]["betas"] = (0.9, 1 - 2 / (t + 20))
        optimizer.param_groups[0]["lr"] = 0.5 / (1 + t / 50)
        with optimizer.sampled_params(train=True):
            (0.5 * (weights @ inputs.T - targets) ** 2).mean(1).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    precision = optimizer.precision_of(weights, optimizer.param_groups[0])
    return weights.detach().mean(0), precision.mean(0)


def exact(data_sets, prior_precision):
    precision = sum((x**2).sum(0) for x, _ in data_sets) + prior_precision
    return sum(x.T @ y for x, y in data_sets) / precision, precision


def test_yesterdays_posterior_as_todays_prior():
    halves, prior = orthogonal_regression()
    mean, precision = exact(halves[:1], prior)
    first = Diagonal({"w": mean.expand(200, 3)}, {"w": precision.expand(200, 3)})
    found = fit(*halves[1], prior=first)
    expected = exact(halves, prior)
    torch.testing.assert_close(found[0], expected[0], atol=0.01, rtol=0)
    torch.testing.assert_close(found[1], expected[1], rtol=0.03, atol=0)


def test_a_site_stands_for_data_that_is_not_there():
    halves, prior = orthogonal_regression()
    (inputs, targets), present = halves
    found = fit(*present, inputs.T @ targets, (inputs**2).sum(0), weight_decay=prior / 40)
    expected = exact(halves, prior)
    torch.testing.assert_close(found[0], expected[0], atol=0.01, rtol=0)
    torch.testing.assert_close(found[1], expected[1], rtol=0.03, atol=0)


def test_the_posterior_carries_what_it_was_trained_with():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    optimizer = IVON(model.parameters(), lr=0.1, ess=500, weight_decay=0.01, betas=(0.9, 0.5))
    for k in range(5):
        with optimizer.sampled_params(train=True):
            loss(model, *data(seed=k)).backward()
        optimizer.step()
        optimizer.zero_grad()
    posterior = optimizer.posterior(model, likelihood="categorical", n=320)
    assert (posterior.n, posterior.ess, posterior.likelihood.name) == (320, 500.0, "categorical")
    assert "1.running_mean" in posterior.buffers
    for name, p in model.named_parameters():
        assert torch.equal(posterior.mean[name], p)
        precision = 500 * (optimizer.state[p]["hessian"] + 0.01)
        torch.testing.assert_close(posterior.variance[name].float(), 1 / precision)
        assert (posterior.prior.precision[name] == 5.0).all()


def test_a_hessian_that_has_hardly_moved_is_mentioned():
    model = network()
    optimizer = IVON(model.parameters(), lr=0.1, ess=50)
    optimizer.step(lambda: loss(model, *data()).backward())
    with pytest.warns(UserWarning, match="only 0% of the Hessian has been learnt"):
        optimizer.posterior(model, likelihood="categorical", n=50)
