"""The optimizers for networks beside the rule: from the same draws, both take the same steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.func import grad

from posterity import algorithms
from posterity.families import Coordinates, DiagonalGaussian, Gaussian, SignBernoulli
from posterity.gradients import (
    AnyFamily,
    AnyLoss,
    AtPoints,
    Curvature,
    Estimator,
    Loss,
    SquaredGradients,
    Stein,
)
from posterity.gradients.losses import as_function
from posterity.optim import EVON, IVON, OGN, SOBA, VOGN, BayesBiNN, BayesianSAM, Vadam, Variational, VariationalNewton
from posterity.rule import BayesianLearningRule
from posterity.table.comparisons._data import furthest
from posterity.table.comparisons._steps import (
    DELTA,
    LR,
    RATE,
    START,
    STEPS,
    D,
    Exercise,
    HalfSteps,
    N,
    draws,
    handed_over,
)


def soba() -> float:
    """The improved rule with a diagonal Gaussian."""
    return _in_one_step(SOBA, DiagonalGaussian, Stein(), rho=RATE)


def variational_newton() -> float:
    """The improved rule with a full Gaussian."""
    return _in_one_step(VariationalNewton, Gaussian, Stein(), rho=RATE, beta1=0.0)


def vogn() -> float:
    """Squared gradients of single examples at a draw."""
    return _in_one_step(VOGN, DiagonalGaussian, SquaredGradients(per_example=True), betas=(0.0, 1 - RATE))


def ogn() -> float:
    """Squared gradients of single examples at the mean."""
    return _in_one_step(OGN, DiagonalGaussian, SquaredGradients(per_example=True), betas=(0.0, 1 - RATE))


def _in_one_step(kind: Any, family: Any, curvature: Curvature, **options: Any) -> float:
    """Mean and precision move in one step of the rule."""
    task, unit = Exercise.of(), torch.ones(D, dtype=torch.float64)
    optimizer = kind(task.model.parameters(), lr=LR, ess=N, hess_init=START, weight_decay=DELTA, **options)
    shaped = torch.diag if family is Gaussian else lambda v: v
    q = family(task.weights, shaped(N * (START + DELTA) * unit))
    rule = BayesianLearningRule(
        AtPoints(task.weights[None], curvature),
        lr=LR,
        prior=family(0 * unit, shaped(N * DELTA * unit)),
        retracted=isinstance(curvature, Stein),
        slow_scale=1 - RATE,
    )
    pairs = []
    for theta, mean in draws(task, optimizer):
        q = replace(rule, gradient=AtPoints(theta[None], curvature)).step(q, task.total())
        precision = q.precision if family is Gaussian else q.precision.diag()
        pairs += [(mean, q.mean), (handed_over(task, optimizer), precision)]
    return furthest(*pairs)


def ivon() -> float:
    """With a prior; then with momentum and a flat prior, because IVON keeps the prior out of its average."""
    return furthest(*_ivon(DELTA, momentum=0.0), *_ivon(0.0, momentum=0.9))


def _ivon(delta: float, momentum: float) -> list[tuple[Tensor, Tensor]]:
    task, betas = Exercise.of(), (momentum, 1 - RATE)
    options: dict[str, Any] = {"hess_init": START, "betas": betas, "weight_decay": delta, "fused": False}
    optimizer = IVON(task.model.parameters(), lr=LR, ess=N, rescale_lr=False, **options)
    rule = HalfSteps(task.weights, N * (START + delta), momentum=momentum, debias=momentum > 0)
    pairs = []
    for theta, mean in draws(task, optimizer):
        rule.move_precision(theta, Stein(), task.total(), delta, retracted=True)
        rule.move_mean(theta, task.pulled(rule.q.mean, delta))
        pairs += [(mean, rule.q.mean), (handed_over(task, optimizer), rule.q.precision.diag())]
    return pairs


def evon() -> float:
    """The steps of IVON for coordinates in the optimizer's basis, which it changes every fourth step."""
    task = Exercise.of(outputs=2)
    options: dict[str, Any] = {"hess_init": START, "betas": (0.0, 1 - RATE), "weight_decay": DELTA, "refresh": 4}
    optimizer = EVON(task.model.parameters(), lr=LR / (START + DELTA), ess=N, **options)
    rule = HalfSteps(task.weights, N * (START + DELTA))
    basis, pairs = torch.eye(2 * D, dtype=torch.float64), []  # weights = basis @ coordinates
    for theta, mean in draws(task, optimizer):
        at = basis.T @ theta
        rule.move_precision(at, Stein(), _turned(task.total(), basis), DELTA, retracted=True)
        rule.move_mean(at, _turned(task.pulled(basis @ rule.q.mean), basis))
        center, matrix = basis @ rule.q.mean, basis @ rule.q.precision.diag() @ basis.T
        state = optimizer.state[task.model.weight]
        basis = torch.kron(state["left_basis"], state["right_basis"])
        rule.q = DiagonalGaussian(basis.T @ center, (basis.T @ matrix @ basis).diagonal())
        pairs += [(mean, center), (handed_over(task, optimizer), basis @ rule.q.precision.diag() @ basis.T)]
    return furthest(*pairs)


def _turned(loss: Loss, basis: Tensor) -> Loss:
    """A loss of weights, as one of their coordinates in a basis."""
    return lambda coordinates: loss(basis @ coordinates)


@dataclass(frozen=True)
class _Sizes(Curvature):
    """λ(√s |g| + γ) in place of the Hessian, with g the mean gradient at a draw: what bSAM learns its width from."""

    scale: Tensor
    damping: float

    def __call__(self, loss: Loss, theta: Tensor, pull: Tensor, diagonal: bool) -> tuple[Tensor, Tensor]:
        gradient = grad(loss)(theta)
        return gradient, self.scale.sqrt() * gradient.abs() + N * self.damping


def bsam() -> float:
    """The mean moves first, by the gradient uphill of it, then the precision."""
    task, rho, damping, beta = Exercise.of(), 0.1, 0.05, 0.8
    options: dict[str, Any] = {"hess_init": START, "weight_decay": DELTA, "damping": damping}
    optimizer = BayesianSAM(task.model.parameters(), lr=LR, ess=N, rho=rho, betas=(beta, 1 - RATE), **options)
    rule = HalfSteps(task.weights, N * START, lr=LR * (1 - beta), momentum=beta)
    pairs = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        with optimizer.sampled_params(train=True):
            theta = task.weights
            task.backward()
        with optimizer.perturbed_params():
            uphill = task.weights
            task.backward()
        optimizer.step()
        mean, scale = rule.q.mean, rule.q.precision / N
        ascent = rho * grad(task.total())(theta) / N / scale
        rule.move_mean(uphill, task.pulled(mean))
        rule.move_precision(theta, _Sizes(scale, damping), task.total(), DELTA, retracted=False)
        pairs += [(uphill, mean + ascent), (task.weights, rule.q.mean)]
        pairs.append((handed_over(task, optimizer), rule.q.precision.diag()))
    return furthest(*pairs)


@dataclass(frozen=True)
class _AtSoftSigns(Estimator):
    """∇ℓ(w) ∘ (1 − w²) / (T(1 − μ²)) at given soft signs w."""

    signs: Tensor
    temperature: float

    def __call__(self, q: AnyFamily, loss: AnyLoss) -> Coordinates:
        assert isinstance(q, SignBernoulli)
        slope = (1 - self.signs**2) / (self.temperature * (1 - q.mean**2))
        return (grad(as_function(loss))(self.signs) * slope,)

    def expectation(self, q: AnyFamily, loss: AnyLoss) -> Tensor:
        return as_function(loss)(self.signs)


def bayesbinn() -> float:
    """Soft signs as the optimizer draws them."""
    task, temperature, beta = Exercise.of(), 0.7, 0.8
    options: dict[str, Any] = {"temperature": temperature, "natural_init": 0.5, "beta": beta}
    optimizer = BayesBiNN(task.model.parameters(), lr=LR, ess=N, **options)
    rule = BayesianLearningRule(_AtSoftSigns(task.weights, temperature), lr=LR, momentum=beta, debias=True)
    state, pairs = rule.start(SignBernoulli(torch.atanh(task.weights))), []
    for signs, mean in draws(task, optimizer):
        state = replace(rule, gradient=_AtSoftSigns(signs, temperature)).advance(state, task.total())
        natural = optimizer.state[task.model.weight]["natural"].reshape(-1).clone()
        pairs += [(mean, state.q.mean), (natural, state.q.natural[0])]
    return furthest(*pairs)


def vadam() -> float:
    """Adam's approximations at draws, with a flat prior; the width begins at that of s₀, which Adam's scale forgets."""
    task, betas = Exercise.of(), (0.9, 1 - RATE)
    optimizer = Vadam(task.model.parameters(), lr=LR, ess=N, hess_init=START, betas=betas, weight_decay=0.0)
    adam = algorithms.adam(LR, betas=betas)
    state, pairs, total = adam.rule.start(adam.start(task.weights)), [], task.total()
    for theta, mean in draws(task, optimizer):
        rule = replace(adam.rule, gradient=AtPoints(theta[None], SquaredGradients()))
        state = rule.advance(state, lambda t: total(t) / N)
        scale = state.q.precision + betas[1] ** state.steps * START
        pairs += [(mean, state.q.mean), (handed_over(task, optimizer), N * scale.diag())]
    return furthest(*pairs)


def _averaged(task: Exercise, rows: slice, mean: Tensor) -> Loss:
    """The mean loss of a batch, with the prior's pull δm."""
    total, pull = task.total(rows), DELTA * mean
    return lambda theta: total(theta) / len(total.targets) + pull @ theta


def variational() -> float:
    """Beside Adam: the mean of the rule with Adam's approximations at the draws, the width of its scale."""
    task, batch, lr, steps = Exercise.of(), 4, 0.02, 60
    base = torch.optim.Adam(task.model.parameters(), lr=lr, betas=(0.9, 1 - RATE))
    optimizer = Variational(base, n=N, total_steps=steps, batch_size=batch, prior=N * DELTA)
    adam = algorithms.adam(lr, betas=(0.9, 1 - RATE))
    state, pairs = adam.rule.start(adam.start(task.weights)), []
    for step in range(1, steps + 1):
        rows = slice(batch * step % N, batch * step % N + batch)
        optimizer.zero_grad()
        with optimizer.sampled_params(train=True):
            theta = task.weights
            task.backward(rows)
        optimizer.step()
        rule = replace(adam.rule, gradient=AtPoints(theta[None], SquaredGradients()))
        state = rule.advance(state, _averaged(task, rows, state.q.mean))
        pairs.append((task.weights, state.q.mean))
    # The posterior has the precision λ(h + δ), h = B v̂ over the share of the variance that a batch and noise leave.
    ess = N / optimizer.temperature
    share = (N - batch) / (N - 1) + batch / ess
    h = batch * state.q.precision / (1 - (1 - RATE) ** steps) / share
    return furthest(*pairs, (handed_over(task, optimizer), (ess * (h + DELTA)).diag()))
