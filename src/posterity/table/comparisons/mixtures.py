"""Mixtures of Gaussians beside autograd on log q and on the free energy, integrated on a fine grid."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal

from posterity import algorithms
from posterity.families import MixtureOfGaussians
from posterity.table.comparisons._data import furthest, normal
from posterity.table.comparisons._minimum import minimum


def _banana(theta: Tensor) -> Tensor:
    """Two crooked valleys."""
    return 0.5 * (theta[0] ** 2 - 2.0) ** 2 + 0.5 * (theta[1] - 0.5 * theta[0] ** 2) ** 2 + 0.1 * theta[0]


def multimodal() -> float:
    """Plain and retracted, five steps of three components each."""
    return furthest(*(pair for retracted in (False, True) for pair in _multimodal(retracted)))


def _multimodal(retracted: bool) -> list[tuple[object, object]]:
    lr, means = 0.05, 1.5 * normal(3, 2, seed=0)
    ours: list[Any] = []
    algorithms.multimodal(lr, retracted=retracted).run(means, _banana, 5, callback=ours.append)
    logits, m, S = torch.zeros(3, dtype=torch.float64), means, torch.eye(2, dtype=torch.float64).repeat(3, 1, 1)
    pairs: list[tuple[object, object]] = []
    for seen in ours:
        q = MixtureSameFamily(Categorical(logits=logits), MultivariateNormal(m, precision_matrix=S))

        values, slopes, bends = _derivatives(q, m)
        new = S + lr * bends
        if retracted:
            new = new + 0.5 * lr**2 * bends @ torch.linalg.inv(S) @ bends
        m = m - lr * torch.linalg.solve(S if retracted else new, slopes)
        S, logits = new, logits - lr * (values - values[-1])
        pairs += [(seen.q.conditional.mean, m), (seen.q.conditional.precision, S)]
        pairs.append((seen.q.weights, logits.softmax(-1)))
    return pairs


def _derivatives(q: MixtureSameFamily, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Value, gradient and Hessian of ℓ + log q at each point."""

    def f(theta: Tensor) -> Tensor:
        return _banana(theta) + q.log_prob(theta)

    autograd = torch.autograd.functional
    values = torch.stack([f(point) for point in points])
    slopes = torch.stack([autograd.jacobian(f, point) for point in points])
    return values, slopes, torch.stack([autograd.hessian(f, point) for point in points])


def _wells(theta: Tensor) -> Tensor:
    """Two wells of unequal depth in one dimension."""
    return 0.25 * (theta**2 - 3.0) ** 2 + 0.3 * theta


def _free_energy(weight: Tensor, means: Tensor, variances: Tensor) -> Tensor:
    """∫ q (ℓ + log q) on a fine grid, for two components of which the first has this weight."""
    x, w = np.polynomial.legendre.leggauss(600)
    theta, step = torch.as_tensor(9.0 * x)[:, None], torch.as_tensor(9.0 * w)
    weights = torch.stack((weight, 1.0 - weight))
    each = weights.log() - 0.5 * (theta - means) ** 2 / variances - 0.5 * (2.0 * math.pi * variances).log()
    log_q = each.logsumexp(-1)
    return step @ (log_q.exp() * (_wells(theta[:, 0]) + log_q))


def _start() -> MixtureOfGaussians:
    return MixtureOfGaussians.of([0.4, 0.6], [[-1.0], [1.2]], [[[3.0]], [[2.0]]])


def _algorithm(lr: float, retracted: bool) -> algorithms.Algorithm[MixtureOfGaussians]:
    return algorithms.mixture_vi(lr, nodes=300, retracted=retracted)


def mixture_vi() -> float:
    """One plain step: ∇_v F = ½π_k E_k[f''] and ∇_m F = π_k E_k[f'] give the update."""
    lr, q = 0.1, _start()
    ours = _algorithm(lr, retracted=False).rule.step(q, lambda theta: _wells(theta).sum())
    weight, m, v = q.weights[0], q.conditional.mean[:, 0], q.conditional.variance[:, 0]
    of_weight, of_mean, of_variance = torch.func.grad(_free_energy, argnums=(0, 1, 2))(weight, m, v)
    precision = 1.0 / v + lr * 2.0 * of_variance / q.weights
    mean = m - lr * of_mean / q.weights / precision
    odds = q.mixing.natural[0][0] - lr * of_weight
    return furthest(
        (ours.conditional.precision.flatten(), precision),
        (ours.conditional.mean.flatten(), mean),
        (ours.mixing.natural[0], odds.reshape(1)),
    )


def mixture_vi_optimum() -> float:
    """Weight, means and variances at rest, beside scipy's minimum of the free energy."""

    def energy(flat: Tensor) -> Tensor:
        return _free_energy(flat[0].sigmoid(), flat[1:3], flat[3:].exp())

    best = minimum(energy, torch.tensor([0.0, -1.0, 1.2, -1.0, -1.0], dtype=torch.float64))
    q = _algorithm(0.5, retracted=True).rule.run(_start(), lambda theta: _wells(theta).sum(), 500, tolerance=1e-9)
    return furthest(
        (q.weights[0], best[0].sigmoid()),
        (q.conditional.mean.flatten(), best[1:3]),
        (q.conditional.variance.flatten(), best[3:].exp()),
    )
