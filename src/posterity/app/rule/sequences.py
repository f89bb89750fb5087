"""Films of exact rows: conjugate models, regressions and chains, one observation after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

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
from posterity.linalg import inverse_psd

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
