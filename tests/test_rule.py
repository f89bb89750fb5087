"""The rule against its own equation written in λ, against autograd on the free energy, and against exact posteriors."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from posterity.errors import InvalidInput
from posterity.families import (
    Beta,
    DiagonalGaussian,
    Dirichlet,
    FixedGaussian,
    Gamma,
    Gaussian,
    MixtureOfGaussians,
    Poisson,
    SignBernoulli,
)
from posterity.gradients import Conjugate, ConjugateLoss, Delta, LinearLoss, Quadrature, SquaredGradients
from posterity.rule import BayesianLearningRule, Iterate, robbins_monro

DOUBLE = torch.float64
H = torch.tensor([[3.0, 0.5], [0.5, 2.0]], dtype=DOUBLE)
B = torch.tensor([1.0, -2.0], dtype=DOUBLE)


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def quadratic(theta: Tensor) -> Tensor:
    return 0.5 * theta @ H @ theta - B @ theta


def bumpy(theta: Tensor) -> Tensor:
    return quadratic(theta) + theta.sin().sum()


def close(found: tuple[Tensor, ...], wanted: tuple[Tensor, ...], tolerance: float = 1e-12) -> None:
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


# -- the equation -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize(
    "q", [Gaussian(B, 2.0 * H), DiagonalGaussian(B, torch.tensor([0.5, 3.0], dtype=DOUBLE))], ids=["full", "diagonal"]
)
def test_a_gaussian_step_in_mean_and_precision_is_the_step_in_natural_parameters(q, temperature):
    rho, estimator = 0.3, Quadrature(12)
    found = BayesianLearningRule(estimator, lr=rho, temperature=temperature).step(q, bumpy)
    gradient = estimator(q, bumpy)
    wanted = tuple((1 - temperature * rho) * n - rho * g for n, g in zip(q.natural, gradient, strict=True))
    close(found.natural, wanted)


@pytest.mark.parametrize("temperature", [1.0, 0.4])
@pytest.mark.parametrize(
    "q",
    [
        Poisson(torch.tensor(0.7, dtype=DOUBLE)),
        FixedGaussian(B, H),
        Gamma(3.0, 2.0),
        Beta(2.0, 0.7),
        Dirichlet([1.0, 2.0, 3.0]),
        SignBernoulli([0.3, -1.0]),
        Gaussian(B, H),
    ],
    ids=repr,
)
def test_the_natural_gradient_is_that_of_the_free_energy(q, temperature):
    # A linear expected loss leaves the entropy, base measure included, as what is tested.
    t = tuple(random(*block.shape, seed=i) for i, block in enumerate(q.natural))
    t = tuple(0.5 * (block + block.mT) if block.ndim == 2 else block for block in t)
    rule = BayesianLearningRule(Conjugate(), temperature=temperature)
    expectation = tuple(block.detach().clone().requires_grad_() for block in q.expectation)
    free_energy = -q.pair(t, expectation) - temperature * q.with_expectation(expectation).entropy()
    wanted = torch.autograd.grad(free_energy, expectation)
    close(rule.natural_gradient(q, ConjugateLoss(t)), wanted, 1e-9)
    torch.testing.assert_close(rule.free_energy(q, ConjugateLoss(t)), free_energy.detach())


def test_the_retracted_step_is_its_formula_with_the_old_precision_for_the_mean():
    q, rho = Gaussian(B, H), 0.7
    hessian = torch.autograd.functional.hessian(bumpy, B)
    gradient = torch.autograd.functional.jacobian(bumpy, B)
    G = hessian - H
    found = BayesianLearningRule(Delta(), lr=rho, retracted=True).step(q, bumpy)
    torch.testing.assert_close(found.precision, H + rho * G + 0.5 * rho**2 * G @ torch.linalg.inv(H) @ G)
    torch.testing.assert_close(found.mean, B - rho * torch.linalg.solve(H, gradient))


@given(
    entries=st.lists(st.floats(-50.0, 50.0), min_size=6, max_size=6),
    scale=st.lists(st.floats(0.1, 10.0), min_size=3, max_size=3),
    lr=st.floats(1e-3, 100.0),
)
@settings(max_examples=60, deadline=None)
def test_the_retraction_stays_positive_definite_for_any_hessian_and_step(entries, scale, lr):
    lower = torch.zeros(3, 3, dtype=DOUBLE)
    lower[tuple(torch.tril_indices(3, 3))] = torch.tensor(entries, dtype=DOUBLE)
    hessian = lower + lower.T
    precision = torch.diag(torch.tensor(scale, dtype=DOUBLE))
    rule = BayesianLearningRule(Delta(), lr=lr, retracted=True)
    q = rule.step(Gaussian(torch.zeros(3, dtype=DOUBLE), precision), lambda theta: 0.5 * theta @ hessian @ theta)
    assert torch.linalg.eigvalsh(q.precision).min() > 0.4 * min(scale)  # at least S/2, as the sum of squares says
    diagonal = DiagonalGaussian(torch.zeros(3, dtype=DOUBLE), torch.tensor(scale, dtype=DOUBLE))
    assert (rule.step(diagonal, lambda theta: 0.5 * theta @ hessian @ theta).precision > 0).all()


def test_a_plain_step_that_leaves_the_cone_says_what_helps():
    rule = BayesianLearningRule(Delta(), lr=0.9)
    with pytest.raises(InvalidInput, match=r"step 1 with lr = 0.9 leaves the family.*smaller lr.*retracted=True"):
        rule.step(Gaussian.standard(2), lambda theta: -theta @ theta)


# -- exact posteriors ---------------------------------------------------------------------------------------------


@given(start=st.tuples(st.floats(0.1, 50.0), st.floats(0.1, 50.0)), prior=st.floats(0.2, 5.0))
@settings(max_examples=40, deadline=None)
def test_conjugate_models_reach_the_posterior_from_any_start(start, prior):
    y = torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=DOUBLE)
    rule = BayesianLearningRule(Conjugate(), lr=1.0, prior=Beta(prior, 2.0))
    q = rule.step(Beta(*start), ConjugateLoss.of(y, 1.0 - y))
    assert q.a.item() == pytest.approx(prior + 3.0, rel=1e-12)
    assert q.b.item() == pytest.approx(3.0, rel=1e-12)


@given(seed=st.integers(0, 1000), lr=st.floats(0.05, 1.0), steps=st.integers(1, 8))
@settings(max_examples=30, deadline=None)
def test_a_quadratic_loss_has_a_geometric_path(seed, lr, steps):
    A = random(2, 2, seed=seed)
    start = Gaussian(random(2, seed=seed + 1), A @ A.T + torch.eye(2, dtype=DOUBLE))
    exact = Gaussian(torch.linalg.solve(H, B), H)
    q = BayesianLearningRule(Delta(), lr=lr).run(start, quadratic, steps)
    left = (1.0 - lr) ** steps
    close(q.natural, tuple(left * a + (1 - left) * b for a, b in zip(start.natural, exact.natural, strict=True)), 1e-9)


def test_the_temperature_is_apart_from_the_step_size():
    for lr in (0.5, 0.9):
        rule = BayesianLearningRule(Delta(), lr=lr, temperature=0.5)
        q = rule.run(Gaussian.standard(2), quadratic, 200, tolerance=1e-11)
        close((q.mean, q.precision), (torch.linalg.solve(H, B), H / 0.5), 1e-9)


def regression() -> tuple[Tensor, Tensor, Gaussian]:
    return random(8, 2, seed=0), random(8, seed=1), Gaussian(B, 2.0 * torch.eye(2, dtype=DOUBLE))


def test_a_prior_of_the_rule_is_a_regulariser_of_the_loss():
    X, y, prior = regression()
    apart = LinearLoss(inputs=X, targets=y, likelihood="gaussian")
    inside = LinearLoss(inputs=X, targets=y, likelihood="gaussian", regulariser=lambda t: -prior.log_prob(t))
    for temperature in (1.0, 0.5):
        given_apart = BayesianLearningRule(Delta(), lr=0.4, temperature=temperature, prior=prior)
        given_inside = BayesianLearningRule(Delta(), lr=0.4, temperature=temperature)
        q, p = (r.run(Gaussian.standard(2), f, 3) for r, f in ((given_apart, apart), (given_inside, inside)))
        close(q.natural, p.natural)
        torch.testing.assert_close(given_apart.free_energy(q, apart), given_inside.free_energy(q, inside))


def test_the_free_energy_of_an_exact_posterior_is_the_evidence():
    X, y, prior = regression()
    rule = BayesianLearningRule(Delta(), lr=1.0, prior=prior)
    loss = LinearLoss(inputs=X, targets=y, likelihood="gaussian")
    found = -rule.free_energy(rule.step(Gaussian.standard(2), loss), loss)
    covariance = np.eye(8) + X.numpy() @ X.numpy().T / 2.0
    wanted = stats.multivariate_normal((X @ B).numpy(), covariance).logpdf(y.numpy())
    assert found.item() == pytest.approx(wanted, rel=1e-12)


def test_a_prior_of_a_mixture_joins_its_expectation():
    q = MixtureOfGaussians.of([0.4, 0.6], [[-1.0, 0.0], [1.0, 0.5]], torch.stack((H, 2.0 * H)))
    prior = Gaussian.standard(2)
    apart = BayesianLearningRule(Quadrature(12), lr=0.1, prior=prior)
    inside = BayesianLearningRule(Quadrature(12), lr=0.1)

    def total(theta: Tensor) -> Tensor:
        return bumpy(theta) - prior.log_prob(theta)

    close(apart.step(q, bumpy).natural, inside.step(q, total).natural)
    torch.testing.assert_close(apart.free_energy(q, bumpy), inside.free_energy(q, total))


# -- the loop -----------------------------------------------------------------------------------------------------


def test_history_stopping_and_callback():
    rule, history = BayesianLearningRule(Delta(), lr=0.5), []
    q = rule.run(Gaussian.standard(2), quadratic, 100, tolerance=1e-6, callback=history.append)
    assert 10 < len(history) < 100
    assert [seen.step for seen in history] == list(range(1, len(history) + 1))
    assert history[-1].change <= 1e-6 < history[-2].change
    assert history[-1].q is q
    assert all(seen.lr == 0.5 for seen in history)

    def third(seen: Iterate[Gaussian]) -> bool:
        return seen.step == 3

    early = rule.run(Gaussian.standard(2), quadratic, 100, callback=third)
    close(early.natural, history[2].q.natural, 0.0)


def test_running_out_of_steps_is_told():
    with pytest.warns(RuntimeWarning, match=r"still moves by .* after 2 steps"):
        BayesianLearningRule(Delta(), lr=0.5).run(Gaussian.standard(2), quadratic, 2, tolerance=1e-6)


def test_schedules():
    schedule, history = robbins_monro(delay=2.0, forgetting=0.8), []
    rule = BayesianLearningRule(Delta(), lr=schedule)
    rule.run(Gaussian.standard(2), quadratic, 3, callback=history.append)
    assert [seen.lr for seen in history] == [(t + 2.0) ** -0.8 for t in (1, 2, 3)]
    sums = np.cumsum([robbins_monro(0.0, 1.0)(t) for t in range(1, 5)])
    # With ρ_t = 1/t the natural parameters are the plain average of what the steps ask for.
    y = random(4, seed=0)
    losses = [ConjugateLoss((v.reshape(1),)) for v in y]
    q = BayesianLearningRule(Conjugate(), lr=robbins_monro(0.0, 1.0)).run(SignBernoulli([5.0]), losses, 4)
    assert q.natural[0].item() == pytest.approx(y.mean().item(), rel=1e-12)
    assert sums[-1] > 2.0
    with pytest.raises(InvalidInput, match="lr at step 1"):
        BayesianLearningRule(Delta(), lr=lambda t: -1.0).step(Gaussian.standard(2), quadratic)


def test_one_loss_for_each_step():
    X, y, _ = regression()
    loss = LinearLoss(inputs=X, targets=y, likelihood="gaussian", regulariser=lambda t: 0.5 * t @ t)
    parts = list(itertools.islice(loss.minibatches(4), 6))
    rule = BayesianLearningRule(Delta(), lr=0.3)
    found = rule.run(Gaussian.standard(2), loss.minibatches(4), 6)
    wanted = Gaussian.standard(2)
    for part in parts:
        wanted = rule.step(wanted, part)
    close(found.natural, wanted.natural, 0.0)


def test_momentum_is_the_heavy_ball_in_natural_parameters():
    rho, beta = 0.1, 0.8
    history = []
    rule = BayesianLearningRule(Delta(), lr=rho, momentum=beta)
    rule.run(FixedGaussian(B, H), bumpy, 4, callback=history.append)
    path = [FixedGaussian(B, H), *(seen.q for seen in history)]
    for before, now, after in zip(path, path[1:], path[2:], strict=False):
        step = Delta()(now, bumpy)[0]
        wanted = now.natural[0] - rho * step + beta * (now.natural[0] - before.natural[0])
        torch.testing.assert_close(after.natural[0], wanted)


def test_states_carry_a_run_on():
    rule = BayesianLearningRule(Delta(SquaredGradients()), lr=0.1, momentum=0.9, slow_scale=0.9, debias=True)
    state = rule.start(DiagonalGaussian.standard(2))
    for _ in range(5):
        state = rule.advance(state, bumpy)
    assert state.steps == 5
    close(state.q.natural, rule.run(DiagonalGaussian.standard(2), bumpy, 5).natural, 0.0)


# -- misuse -------------------------------------------------------------------------------------------------------


def test_prior_and_regulariser_exclude_each_other():
    X, y, prior = regression()
    loss = LinearLoss(inputs=X, targets=y, likelihood="gaussian", regulariser=lambda t: 0.5 * t @ t)
    rule = BayesianLearningRule(Delta(), prior=prior)
    for ask in (rule.step, rule.free_energy, rule.natural_gradient):
        with pytest.raises(InvalidInput, match="a prior of the rule or a regulariser of the loss, got 'both'"):
            ask(Gaussian.standard(2), loss)


@pytest.mark.parametrize(
    ("q", "prior"),
    [
        (Gaussian.standard(2), DiagonalGaussian.standard(2)),
        (Gaussian.standard(2), Gaussian.standard(3)),
        (FixedGaussian(B, H), FixedGaussian(B, 2.0 * H)),
    ],
    ids=["another family", "another size", "another constant"],
)
def test_a_prior_must_be_of_the_family(q, prior):
    with pytest.raises(InvalidInput, match="prior: expected a member of the family"):
        BayesianLearningRule(Delta(), prior=prior).step(q, quadratic)


@pytest.mark.parametrize(
    "options",
    [
        {"lr": 0.0},
        {"lr": math.nan},
        {"temperature": -1.0},
        {"temperature": math.inf},
        {"momentum": 1.0},
        {"slow_scale": 1.0},
        {"square_root": -1e-8},
        {"decay": -0.1},
        {"debias": True},
    ],
    ids=str,
)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(InvalidInput, match=next(iter(options))):
        BayesianLearningRule(Delta(), **options)


@pytest.mark.parametrize("options", [{"retracted": True}, {"slow_scale": 0.9}, {"square_root": 0.0}, {"decay": 0.1}])
def test_options_of_gaussians_are_refused_elsewhere(options):
    with pytest.raises(InvalidInput, match=f"^{next(iter(options))}: expected a Gaussian q"):  # not: a smaller lr helps
        BayesianLearningRule(Delta(), lr=0.1, **options).step(FixedGaussian(B, H), quadratic)


def test_the_square_root_of_a_matrix_is_refused():
    with pytest.raises(InvalidInput, match=r"^square_root: expected a DiagonalGaussian q, got 'Gaussian'"):
        BayesianLearningRule(Delta(), lr=0.1, square_root=1e-8).step(Gaussian(B, H), quadratic)


@pytest.mark.parametrize("steps", [0, 2.5])
def test_a_run_takes_at_least_one_step(steps):
    with pytest.raises(InvalidInput, match="steps: expected a whole number"):
        BayesianLearningRule(Delta()).run(Gaussian.standard(2), quadratic, steps)


def test_what_is_no_estimator_family_or_prior_is_refused():
    with pytest.raises(InvalidInput, match="gradient: expected an estimator"):
        BayesianLearningRule("delta")
    with pytest.raises(InvalidInput, match="q: expected a member of a family"):
        BayesianLearningRule(Delta()).step(torch.zeros(2), quadratic)
    q = MixtureOfGaussians.of([0.5, 0.5], [[0.0], [1.0]], [[[1.0]], [[1.0]]])
    with pytest.raises(InvalidInput, match="prior: expected a family of θ with 1 entries"):
        BayesianLearningRule(Delta(), prior=Gaussian.standard(3)).step(q, lambda theta: theta.square().sum())


def test_a_loss_without_a_gradient_is_named():
    with pytest.raises(InvalidInput, match=r"^gradient of the loss at step 1: expected finite entries"):
        BayesianLearningRule(Delta()).step(Gaussian.standard(2), lambda theta: math.nan * theta.sum())


@pytest.mark.parametrize("loss", [lambda t: t, lambda t: 3.0, lambda t: (torch.ones(2) @ t).sum()])
def test_a_loss_that_is_no_number_is_named(loss):
    with pytest.raises(InvalidInput, match=r"loss: expected a function of θ, of dtype torch.float64, that returns one"):
        BayesianLearningRule(Delta()).step(Gaussian.standard(2), loss)


def test_a_scale_that_no_gradient_feeds_stays_positive():
    rule = BayesianLearningRule(Delta(SquaredGradients()), lr=0.1, slow_scale=0.5, square_root=1e-8)
    start = DiagonalGaussian(torch.ones(2), torch.full((2,), 1e-19))
    q = rule.run(start, lambda theta: theta[0] ** 2 + 0.0 * theta[1], 200)  # 2⁻²⁰⁰ of it is below what float32 holds
    assert q.mean[1] == 1.0
    assert q.mean[0].abs() < 0.2
