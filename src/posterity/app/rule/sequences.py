"""Films of exact rows: conjugate models, regressions and chains, one observation after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from posterity.adaptation import ewc, fromp, k_prior, remember
from posterity.algorithms import (
    LinearStateSpace,
    beta_bernoulli,
    dirichlet_categorical,
    gamma_poisson,
    kalman_filter,
    kalman_smoother,
    linear_regression,
    normal_gamma,
)
from posterity.app.rule.film import Film, Frame, describe, grid, thetas
from posterity.families import Beta, Dirichlet, Family, Gamma, Gaussian, NormalGamma
from posterity.graph import filter_states, smooth_states
from posterity.likelihoods import GaussianLikelihood
from posterity.linalg import inverse_psd
from posterity.posterior import Diagonal, Full, Posterior

Observed = tuple[tuple[float, float], ...]


def _double(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _arriving(
    prior: Family, update: Callable[[Any, Tensor], Any], data: Tensor, domain: Observed, axes: tuple[str, ...],
    note: Callable[[Tensor], str], log_density: Callable[[Any, Tensor], Tensor],
) -> Film:  # fmt: skip
    """The posterior after each observation; it is the prior of the next."""
    points, frames, q = grid(domain), [], prior
    for seen in range(len(data) + 1):
        if seen:
            q = update(q, data[seen - 1 : seen])
        density = log_density(q, points).exp().nan_to_num(0.0, 0.0, 0.0).tolist()
        frames.append(Frame(note=note(data[:seen]), density=density, seen=seen))
    return Film(domain, axes, frames)


def beta() -> Film:
    """The probability of an outcome, as outcomes arrive."""
    data = _double([1, 1, 0, 1, 1, 1, 0, 1, 1, 0, 1, 1, 1, 1, 0, 1, 1, 1, 0, 1])
    return _arriving(
        Beta(1.0, 1.0), beta_bernoulli, data, ((0.001, 0.999),), ("probability θ",),
        lambda seen: f"{int(seen.sum())} of {len(seen)}", lambda q, x: q.log_prob(x[:, 0]),
    )  # fmt: skip


def gamma() -> Film:
    """The rate of counts, as counts arrive."""
    data = _double([3, 5, 2, 4, 6, 3, 4, 2, 5, 4, 3, 7, 4, 3, 5])
    return _arriving(
        Gamma(1.5, 0.4), gamma_poisson, data, ((0.01, 10.0),), ("rate θ",),
        lambda seen: f"{int(seen.sum())} in {len(seen)}", lambda q, x: q.log_prob(x[:, 0]),
    )  # fmt: skip


def dirichlet() -> Film:
    """The probabilities of three classes, as labels arrive."""
    data = torch.tensor([0, 1, 0, 2, 0, 1, 0, 0, 1, 2, 0, 1, 0, 0, 1, 0, 2, 0, 1, 0])

    def log_density(q: Dirichlet, points: Tensor) -> Tensor:
        rest = 1.0 - points.sum(-1, keepdim=True)
        inside = (rest > 1e-6).squeeze(-1)
        theta = torch.cat((points, rest), -1).clamp(min=1e-9)
        return torch.where(inside, q.log_prob(theta / theta.sum(-1, keepdim=True)), -torch.inf)

    return _arriving(
        Dirichlet(_double([1.2, 1.2, 1.2])), dirichlet_categorical, data, ((0.001, 1.0), (0.001, 1.0)), ("θ₁", "θ₂"),
        lambda seen: " · ".join(str(int((seen == k).sum())) for k in range(3)), log_density,
    )  # fmt: skip


def normal() -> Film:
    """Mean and precision of a Gaussian, as numbers arrive."""
    data = 0.8 + 0.6 * torch.randn(24, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

    def log_density(q: NormalGamma, points: Tensor) -> Tensor:
        x, precision = points.unbind(-1)
        rates = torch.distributions.Gamma(q.shape, q.rate).log_prob(precision)
        return rates + torch.distributions.Normal(q.location, (q.strength * precision) ** -0.5).log_prob(x)

    return _arriving(
        NormalGamma(0.0, 0.3, 2.0, 1.0), normal_gamma, data, ((-1.5, 2.5), (0.02, 7.0)), ("mean x", "precision τ"),
        lambda seen: f"{len(seen)} numbers", log_density,
    )  # fmt: skip


def polynomial() -> Film:
    """Regression of degree 15, as examples arrive: the curves that are left, and two of sixteen coefficients."""
    generator = torch.Generator().manual_seed(1)
    x = 2.0 * torch.rand(24, generator=generator, dtype=torch.float64) - 1.0
    y = torch.sin(4.0 * x) + 0.15 * torch.randn(24, generator=generator, dtype=torch.float64)
    wide = torch.linspace(-1.2, 1.2, 61, dtype=torch.float64)
    frames = []
    for seen in range(len(x) + 1):
        rows = _powers(x[:seen]) if seen else torch.zeros(1, 16, dtype=torch.float64)
        q = linear_regression(rows, y[:seen] if seen else torch.zeros(1).double(), noise_precision=40.0)
        curves = [torch.stack((wide, _powers(wide) @ theta), -1).tolist() for theta in thetas(q)]
        pair = Gaussian(q.mean[1:3], inverse_psd(q.covariance[1:3, 1:3]))
        frames.append(describe(pair, note=f"{seen} examples", lines=curves, seen=seen))
    data = torch.stack((x, y), -1).tolist()
    span = ((-1.2, 1.2), (-2.2, 2.2))
    return Film(
        ((-3.0, 5.0), (-3.0, 3.0)), ("coefficient of x", "coefficient of x²"), frames, None, data, "line", span,
        ("x", "y"),
    )  # fmt: skip


def _powers(x: Tensor) -> Tensor:
    return x[:, None] ** torch.arange(16)


def keeping() -> Film:
    """Linear regression on new examples; EWC, a K-prior or FROMP keeps the old ones: three penalties, one posterior."""
    noise, weak = 8.0, 0.5  # precisions of the noise and of the prior
    old = _double([[-1.7, -1.2], [-1.2, -0.9], [-0.8, -0.2], [-0.3, -0.3], [0.1, 0.4]])
    new = _double([[0.4, 0.0], [0.7, 0.5], [0.9, 0.3], [1.1, 0.9], [1.4, 0.6], [1.6, 1.1], [1.9, 0.8], [2.1, 1.4]])
    rows, x = [torch.stack((torch.ones_like(part[:, 0]), part[:, 0]), 1) for part in (old, new)], new[:, 1]
    q = linear_regression(rows[0], old[:, 1], prior_precision=weak, noise_precision=noise)
    model = torch.nn.Linear(2, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(q.mean[None])
    mean = {"weight": q.mean[None].clone()}
    prior, likelihood = Diagonal.isotropic(mean, weak), GaussianLikelihood(noise)
    past = Posterior.of(model, Full(mean, q.precision), prior=prior, n=5, ess=5, likelihood=likelihood)
    all_old, two = remember(model, (rows[0], old[:, 1:])), remember(model, (rows[0][::4], old[::4, 1:]))
    penalties = ewc(past), k_prior(model, past, all_old), fromp(model, [two], past, jitter=0.0)
    kept = [_hessian(penalty.total, model) for penalty in penalties]
    wide, frames = torch.linspace(-2.4, 2.4, 2, dtype=torch.float64), []
    for seen in range(len(new) + 1):
        z, y = rows[1][:seen], x[:seen]
        found = [Gaussian.from_natural((s @ q.mean + noise * z.T @ y, -0.5 * (s + noise * z.T @ z))) for s in kept]
        apart = max(float((one.precision - found[0].precision).abs().max()) for one in found)
        lines = [torch.stack((wide, theta[0] + theta[1] * wide), -1).tolist() for theta in thetas(found[0])]
        note = f"{seen} new, the three differ by {apart:.0e}" if apart else f"{seen} new"
        frames.append(describe(found[0], note=note, lines=lines, seen=len(old) + seen))
    data, span = torch.cat((old, new)).tolist(), ((-2.4, 2.4), (-2.4, 2.4))
    return Film(
        ((-1.0, 1.0), (-0.3, 1.7)), ("intercept θ₁", "slope θ₂"), frames, None, data, "line", span, ("x", "y")
    )  # fmt: skip


def _hessian(penalty: Callable[[torch.nn.Module], Tensor], model: torch.nn.Linear) -> Tensor:
    """That of a penalty in the weights of a model."""
    (slope,) = torch.autograd.grad(penalty(model), [model.weight], create_graph=True)
    rows = [torch.autograd.grad(entry, [model.weight], retain_graph=True)[0][0] for entry in slope[0]]
    return torch.stack(rows)


def _tracking() -> tuple[LinearStateSpace, Tensor]:
    """A target that moves along a line, its place seen with noise."""
    model = LinearStateSpace(
        transition=_double([[1.0, 0.25], [0.0, 1.0]]), transition_noise=_double([[0.004, 0.0], [0.0, 0.02]]),
        observation=_double([[1.0, 0.0]]), observation_noise=_double([[0.09]]),
        initial_mean=_double([0.0, 0.0]), initial_covariance=_double([[0.6, 0.0], [0.0, 0.6]]),
    )  # fmt: skip
    time = torch.arange(24, dtype=torch.float64)
    path = 1.2 * torch.sin(0.28 * time)
    noise = 0.3 * torch.randn(24, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    return model, (path + noise)[:, None]


def filtering(missing: bool = False) -> Film:
    """Place and speed of a target, filtered."""
    model, seen = _tracking()
    if missing:
        seen[8:14] = torch.nan
        found = filter_states(model, seen)
        return _chain(found.mean, found.covariance, seen, forwards=True)
    states = kalman_filter(model, seen).states
    return _chain(states.mean, states.covariance, seen, forwards=True)


def smoothing(missing: bool = False) -> Film:
    """The same from all observations, from the last state back to the first."""
    model, seen = _tracking()
    if missing:
        seen[8:14] = torch.nan
        found = smooth_states(model, seen)
        return _chain(found.mean, found.covariance, seen, forwards=False)
    states = kalman_smoother(model, seen).states
    return _chain(states.mean, states.covariance, seen, forwards=False)


def _chain(means: Tensor, covariances: Tensor, seen: Tensor, forwards: bool) -> Film:
    frames, count = [], len(means)
    spread = 2.0 * covariances[:, 0, 0].sqrt()
    for t in range(count) if forwards else reversed(range(count)):
        belief = Gaussian(means[t], inverse_psd(covariances[t]))
        part = slice(0, t + 1) if forwards else slice(t, count)
        times = torch.arange(count, dtype=torch.float64)[part]
        bands = [torch.stack((times, means[part, 0] + k * spread[part]), -1).tolist() for k in (0, -1, 1)]
        note = f"time {t + 1}" + ("" if bool(seen[t].isfinite()) else ", nothing seen")
        frames.append(describe(belief, note=note, lines=bands, seen=t + 1 if forwards else None))
    data = [[float(t), float(y)] for t, y in enumerate(seen[:, 0]) if bool(y.isfinite())]
    span = ((-0.6, count - 0.4), (-2.4, 2.4))
    return Film(
        ((-2.2, 2.2), (-1.8, 1.8)), ("place", "speed"), frames, None, data, "line", span, ("time", "place"),
        line_kind="band",
    )  # fmt: skip
