"""Penalties against each other where theory makes them one, and against transcriptions of their equations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import posterity as po
from adaptation.problems import glm, logistic, newton_logistic, tanh_network
from networks import perceptron
from posterity.adaptation import (
    FunctionDivergence,
    Quadratic,
    Replay,
    SynapticIntelligence,
    accumulate,
    ewc,
    fromp,
    k_prior,
    reconstruction_error,
    remember,
    weights_functions_labels,
)
from posterity.adaptation.penalties.penalty import gradient
from posterity.errors import InvalidInput
from posterity.likelihoods import GaussianLikelihood, likelihood
from posterity.posterior import Diagonal, Full, Posterior
from posterity.trees import snapshot, to_vector, trainable


def moved(model, seed=1, size=0.5):
    """The model with its weights moved at random."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(size * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return model


@pytest.fixture
def regression():
    """A linear regression at its optimum, with noise precision 3, and its full posterior."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 4, generator=generator, dtype=torch.float64)
    y = torch.randn(12, 1, generator=generator, dtype=torch.float64)
    precision = 3.0 * x.T @ x + 0.7 * torch.eye(4, dtype=torch.float64)
    model = nn.Linear(4, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(torch.linalg.solve(precision, 3.0 * x.T @ y).T)
    mean = snapshot(trainable(model))
    posterior = Posterior.of(
        model,
        Full(mean, precision),
        prior=Diagonal.isotropic(mean, 0.7),
        n=12,
        ess=12,
        likelihood=GaussianLikelihood(3.0),
    )
    return model, posterior, x, y


def test_linear_regression_makes_ewc_kprior_and_fromp_one(regression):
    model, posterior, x, y = regression
    memory = remember(model, (x, y))
    penalties = ewc(posterior), k_prior(model, posterior, memory), fromp(model, [memory], posterior, jitter=0.0)
    before = snapshot(model.state_dict())
    moved(model)
    step = (model.weight - before["weight"])[0]
    wanted = (0.5 * step @ posterior.structure.precision @ step).item()
    for penalty in penalties:
        assert penalty.total(model).item() == pytest.approx(wanted, abs=1e-10)
        found = gradient(penalty, model)["weight"][0]
        assert torch.allclose(found, posterior.structure.precision @ step, atol=1e-10, rtol=0)


def test_kprior_splits_into_memory_and_remainder(regression):
    model, posterior, x, y = regression
    whole = k_prior(model, posterior, remember(model, (x, y)))
    part = k_prior(model, posterior, remember(model, (x[:5], y[:5], torch.arange(5))))
    empty = k_prior(model, posterior)
    moved(model)
    for penalty in (part, empty):
        assert penalty.total(model).item() == pytest.approx(whole.total(model).item(), abs=1e-10)


def test_tempered_posteriors_count_untempered(regression):
    model, posterior, x, y = regression
    cold = Posterior.of(
        model,
        Full(posterior.mean, 10 * posterior.structure.precision),
        prior=Diagonal.isotropic(posterior.mean, 7.0),
        n=12,
        ess=120,
        likelihood=posterior.likelihood,
    )
    memory = remember(model, (x[:5], y[:5], torch.arange(5)))
    pairs = [(ewc(p), k_prior(model, p, memory), fromp(model, [memory], p, jitter=0.1)) for p in (posterior, cold)]
    moved(model)
    for warm, tempered in zip(*pairs):
        assert tempered.total(model).item() == pytest.approx(warm.total(model).item(), rel=1e-10)


def test_glm_kprior_with_full_memory_has_the_gradient_of_the_past():
    x, y = logistic(40)
    w, _ = newton_logistic(x, y, 0.5)
    model, posterior = glm(w, x, precision=0.5)
    penalty = k_prior(model, posterior, remember(model, (x, y)))
    moved(model)
    past = x.T @ (torch.sigmoid(x @ model.weight.T) - y) + 0.5 * model.weight.T
    assert torch.allclose(gradient(penalty, model)["weight"], past.T, atol=1e-12)


def test_online_ewc_with_full_curvature_is_sequential_laplace():
    tasks = [logistic(30, seed=s, shift=0.3 * s) for s in range(3)]
    model = nn.Linear(4, 1, bias=False, dtype=torch.float64)
    anchor = Full({"weight": torch.zeros(1, 4, dtype=torch.float64)}, 0.8 * torch.eye(4, dtype=torch.float64))
    w, precision = np.zeros(4), 0.8 * np.eye(4)
    for x, y in tasks:
        w, precision = newton_logistic(x, y, precision, start=w, linear=precision @ w)
        objective = Replay(remember(model, (x, y)), likelihood("bernoulli")) + Quadratic(anchor)
        for _ in range(30):  # Newton on the penalised loss
            g = to_vector(gradient(objective, model))
            h = po.curvature.full_ggn(model, po.batches.batches((x, y)), "bernoulli") + anchor.precision
            with torch.no_grad():
                model.weight -= torch.linalg.solve(h, g).reshape(1, 4)
        anchor = accumulate(anchor, model, (x, y), "bernoulli")
        assert np.abs(anchor.mean["weight"].numpy()[0] - w).max() < 1e-9
        assert np.abs(anchor.precision.numpy() - precision).max() < 1e-9


@pytest.mark.parametrize("size", [1, 7, 30])
def test_accumulated_fisher_is_per_example(size):
    x, y = logistic(30)
    model = moved(nn.Linear(4, 1, bias=False, dtype=torch.float64))
    p = torch.sigmoid(model(x))
    wanted = 0.5 * 2.0 + (p * (1 - p) * x**2).sum(0)  # γ P + Σ p(1 − p) x²
    prior = Diagonal.isotropic(trainable(model), 2.0)
    data = po.batches.batches((x, y), batch_size=size)
    found = accumulate(prior, model, data, "bernoulli", decay=0.5)
    assert torch.allclose(found.precision["weight"][0], wanted.detach(), atol=1e-12)


def published_fromp(weights, model, memories, variance, jitter):
    """FROMP's regulariser by autograd alone: class by class, with Jacobians of the probabilities."""
    at = snapshot(trainable(model))

    def probabilities(tree, x):
        return torch.softmax(torch.func.functional_call(model, tree, (x,)), -1)

    total = 0.0
    for x in memories:
        jacobians = torch.func.jacrev(lambda tree, x=x: probabilities(tree, x))(at)  # (M, C, *shape)
        flat = torch.cat([j.flatten(2) for j in jacobians.values()], -1)
        difference = probabilities(weights, x) - probabilities(at, x)
        for c in range(flat.shape[1]):
            k = flat[:, c] @ torch.diag(variance) @ flat[:, c].T + jitter * torch.eye(len(x), dtype=torch.float64)
            total = total + 0.5 * difference[:, c] @ torch.linalg.solve(k, difference[:, c])
    return total


def test_fromp_equals_its_transcription():
    torch.manual_seed(0)
    model = perceptron(3, 5, 3).double()
    x = torch.randn(2, 6, 3, dtype=torch.float64)
    mean = snapshot(trainable(model))
    precision = {name: 0.5 + torch.rand_like(p) for name, p in mean.items()}
    prior = Diagonal.isotropic(mean, 0.1)
    posterior = Posterior.of(model, Diagonal(mean, precision), prior=prior, n=40, ess=40, likelihood="categorical")
    memories = [remember(model, (part, torch.zeros(6, dtype=torch.int64))) for part in x]
    penalty = fromp(model, memories, posterior, jitter=1e-2)
    weights = {name: (t + 0.3 * torch.randn_like(t)).requires_grad_() for name, t in mean.items()}
    variance = to_vector(precision).reciprocal()
    wanted = published_fromp(weights, model, x, variance, 1e-2)
    slopes = dict(zip(weights, torch.autograd.grad(wanted, list(weights.values()))))
    posterior.apply(model, weights)
    assert penalty.total(model).item() == pytest.approx(wanted.item(), abs=1e-10)
    for name, g in gradient(penalty, model).items():
        assert torch.allclose(g, slopes[name], atol=1e-10)
    identity = fromp(model, memories, posterior, kernels="identity")
    assert identity.total(model).item() == 0.0
    posterior.apply(model, mean)
    usual, written_out = (fromp(model, memories, posterior, **given) for given in ({}, {"jitter": 1e-5}))
    posterior.apply(model, weights)
    assert usual.total(model) == written_out.total(model)


def test_fromp_keeps_full_precision_under_autocast_and_gives_the_settings_back():
    torch.manual_seed(0)
    model = perceptron(3, 5, 3)
    mean = snapshot(trainable(model))
    prior = Diagonal.isotropic(mean, 0.1)
    posterior = Posterior.of(model, prior, prior=prior, n=40, ess=40, likelihood="categorical")
    memory = remember(model, (torch.randn(6, 3), torch.zeros(6, dtype=torch.int64)))
    penalty = fromp(model, [memory], posterior, jitter=1e-6)
    posterior.apply(model, {name: t + 1e-3 * torch.randn_like(t) for name, t in mean.items()})
    wanted = penalty.total(model).item()
    before = torch.backends.cuda.matmul.fp32_precision
    with torch.autocast("cpu", torch.bfloat16):
        assert penalty.total(model).item() == pytest.approx(wanted, rel=1e-6)
    assert torch.backends.cuda.matmul.fp32_precision == before


def test_gradient_reconstruction_error_falls_with_every_part():
    x, y = logistic(60, d=3)
    model = tanh_network(x, y, precision=0.3)
    prior = Diagonal.isotropic(trainable(model), 0.3)
    anchor = accumulate(prior, model, (x, y), "bernoulli")
    posterior = Posterior.of(model, anchor, prior=prior, n=60, ess=60, likelihood="bernoulli")
    data = remember(model, (x, y))
    kept = data.take(torch.arange(60)[torch.arange(60) % 6 > 0])
    exact = weights_functions_labels(model, posterior, data)
    chain = [ewc(posterior), k_prior(model, posterior, kept), weights_functions_labels(model, posterior, kept)]
    start = snapshot(trainable(model))
    errors = []
    for seed in range(10):
        posterior.apply(model, start)
        moved(model, seed=seed, size=0.2)
        errors.append([reconstruction_error(penalty, model, posterior, data) for penalty in chain])
        assert reconstruction_error(exact, model, posterior, data) < 1e-6
    weights, functions, labels = np.mean(errors, axis=0)
    assert weights > 1.3 * functions > 1.3 * 1.1 * labels


def test_function_divergence_is_zero_at_the_old_model_and_positive_elsewhere():
    x, _ = logistic(20)
    for name, k in (("bernoulli", 1), ("categorical", 3), ("gaussian", 2), ("poisson", 1)):
        model = moved(nn.Linear(4, k, dtype=torch.float64))
        memory = remember(model, (x, torch.zeros(20, dtype=torch.int64)))
        penalty = FunctionDivergence(memory, likelihood(name))
        assert penalty.total(model).item() == pytest.approx(0.0, abs=1e-12)
        assert penalty.total(moved(model, seed=2)).item() > 0


def test_a_batch_of_memory_is_unbiased():
    x, y = logistic(7)
    model = moved(nn.Linear(4, 1, dtype=torch.float64))
    memory = remember(model, (x, y), weights=torch.arange(1.0, 8.0))
    moved(model, seed=3)
    whole = Replay(memory, likelihood("bernoulli")).total(model).item()
    torch.manual_seed(0)
    some = Replay(memory, likelihood("bernoulli"), batch_size=3)
    draws = np.array([some.total(model).item() for _ in range(300)])
    assert abs(draws.mean() - whole) < 4 * draws.std() / np.sqrt(300)


def test_a_name_is_no_likelihood():
    memory = remember(nn.Linear(4, 1, dtype=torch.float64), logistic(7))
    with pytest.raises(InvalidInput, match="likelihood: expected a Likelihood, such as that of a posterior"):
        Replay(memory, "bernoulli")


def test_one_place_divides_by_n(regression):
    """A mean over n beside penalty.over(n) has the minimum of a sum beside the total."""
    model, posterior, x, y = regression
    penalty = k_prior(model, posterior, remember(model, (x, y)))
    moved(model)
    new, target = x[:6] + 1.0, y[:6] - 1.0
    mean = F.mse_loss(model(new), target) + penalty.over(6).penalty(model)
    total = (model(new) - target).square().sum() + penalty.total(model)
    (a,) = torch.autograd.grad(mean, model.weight)
    (b,) = torch.autograd.grad(total, model.weight)
    assert torch.allclose(6 * a, b, rtol=1e-12)
    doubled = 2.0 * penalty + penalty
    assert doubled.total(model).item() == pytest.approx(3 * penalty.total(model).item())


def test_penalties_go_into_fit():
    """Bayesian linear regression in two steps equals the one with all data."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=generator)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]]) + 0.1 * torch.randn(40, 1, generator=generator)
    old = torch.linalg.solve(x[:20].T @ x[:20] + torch.eye(3), x[:20].T @ y[:20])
    model = nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(old.T)
    structure = Full(snapshot(trainable(model)), x[:20].T @ x[:20] + torch.eye(3))
    prior = Diagonal.isotropic(trainable(model), 1.0)
    posterior = Posterior.of(model, structure, prior=prior, n=20, ess=20, likelihood=GaussianLikelihood(1.0))
    run = po.fit(
        model,
        (x[20:], y[20:]),
        method="sgd",
        prior=0.0,
        lr=0.02,
        epochs=300,
        batch_size=20,
        likelihood=GaussianLikelihood(1.0),
        penalty=ewc(posterior).over(20),
    )
    wanted = torch.linalg.solve(x.T @ x + torch.eye(3), x.T @ y)
    assert torch.allclose(run.model.weight.T, wanted, atol=1e-4)


def test_synaptic_importance_is_the_fall_of_the_loss_along_the_path():
    torch.manual_seed(0)
    model = nn.Linear(3, 1, bias=False, dtype=torch.float64)
    x, y = torch.randn(10, 3, dtype=torch.float64), torch.randn(10, 1, dtype=torch.float64)
    watch = SynapticIntelligence(model, damping=1e-3)
    start = snapshot(trainable(model))["weight"]
    penalty = watch.penalty(10, strength=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=5e-4)
    losses = []
    for _ in range(1000):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        (loss + penalty.penalty(model)).backward()
        losses.append(loss.item())
        optimizer.step()
        watch.observe(model)
    fell = losses[0] - F.mse_loss(model(x), y).item()
    assert watch.path["weight"].sum().item() == pytest.approx(fell, rel=1e-3)
    path = watch.path["weight"].clone()
    watch.consolidate(model)
    wanted = 10 * (path / ((model.weight - start) ** 2 + 1e-3)).clamp_min(0)
    assert torch.allclose(watch.importance["weight"], wanted.detach())
    anchor = model.weight.detach().clone()
    moved(model)
    c = (0.5 * wanted * (model.weight - anchor) ** 2).sum().item()
    assert watch.penalty(1, strength=0.5).total(model).item() == pytest.approx(c)


def test_synaptic_paths_do_not_count_the_penalty():
    torch.manual_seed(0)
    x, y = torch.randn(10, 3, dtype=torch.float64), torch.randn(10, 1, dtype=torch.float64)
    model = nn.Linear(3, 1, bias=False, dtype=torch.float64)
    watch = SynapticIntelligence(model)
    watch.importance = {"weight": torch.ones(1, 3, dtype=torch.float64)}
    watch.anchor = {"weight": torch.ones(1, 3, dtype=torch.float64)}
    penalty = watch.penalty(10)
    before = model.weight.detach().clone()
    loss = F.mse_loss(model(x), y)
    (task,) = torch.autograd.grad(loss, model.weight, retain_graph=True)
    (loss + penalty.penalty(model)).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    watch.observe(model)
    assert torch.allclose(watch.path["weight"], -task * (model.weight - before), atol=1e-12)


def test_bad_input():
    x, y = logistic(10)
    model, posterior = glm(np.zeros(4), x)
    memory = remember(model, (x, y))
    bare = type(memory)(memory.inputs, memory.targets, memory.ids)
    with pytest.raises(po.PosterityError, match="predictions"):
        FunctionDivergence(bare, likelihood("bernoulli")).total(model)
    with pytest.raises(po.PosterityError, match="kernels"):
        fromp(model, [memory], posterior, kernels="nothing")
    with pytest.raises(po.PosterityError, match="memories"):
        fromp(model, [], posterior)
    with pytest.raises(po.PosterityError, match="decay"):
        accumulate(posterior.prior, model, (x, y), "bernoulli", decay=2.0)
