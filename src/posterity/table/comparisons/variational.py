"""OGN and VOGN beside per-example gradients and their exact averages, Gaussian VI beside scipy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from posterity import algorithms
from posterity.families import Gaussian
from posterity.gradients import DataLoss, LinearLoss
from posterity.table.comparisons._data import classification, counts, furthest, logistic_loss, normal
from posterity.table.comparisons._minimum import minimum


def ogn() -> float:
    """A network with two hidden units, ten steps."""
    X, y = classification(n=20, d=2)

    def network(theta: Tensor, inputs: Tensor) -> Tensor:
        return (torch.tanh(inputs @ theta[:4].reshape(2, 2)) @ theta[4:]).unsqueeze(-1)

    def example(theta: Tensor, x: Tensor, target: Tensor) -> Tensor:
        hidden = torch.tanh(x @ theta[:4].reshape(2, 2))
        return F.binary_cross_entropy_with_logits(hidden @ theta[4:], target)

    start = normal(6, seed=4)
    loss = DataLoss(
        inputs=X, targets=y[:, None], likelihood="bernoulli", model=network, regulariser=lambda t: 0.5 * t @ t
    )
    ours: list[Any] = []
    algorithms.ogn(0.2).run(start, loss, 10, callback=ours.append)
    pairs, mean, scale = [], start, torch.ones_like(start)
    for seen in ours:
        each = torch.func.vmap(torch.func.grad(example), in_dims=(None, 0, 0))(mean, X, y)
        scale = 0.8 * scale + 0.2 * ((each**2).sum(0) + 1.0)
        mean = mean - 0.2 * (each.sum(0) + mean) / scale
        pairs += [(seen.q.mean, mean), (seen.q.precision, scale)]
    return furthest(*pairs)


def vogn() -> float:
    """In standard errors of the Monte Carlo average."""
    X, y = classification()
    start, repeats = normal(3, seed=4), 100
    algorithm = algorithms.vogn(0.2, samples=100, generator=torch.Generator().manual_seed(0))
    draws = [algorithm.run(start, logistic_loss(), steps=1).natural for _ in range(repeats)]
    steps = torch.stack([torch.cat(blocks) for blocks in draws])
    # Along each example θ is one Gaussian number: a fine grid gives E[gᵢ] and E[gᵢ²], hence the natural parameters.
    x, w = _legendre()
    f = X @ start + (X**2).sum(-1).sqrt() * x[:, None]
    residual = torch.sigmoid(f) - y
    slope = (w @ residual) @ X + start
    squares = (w @ residual**2) @ X**2 + 1.0
    precision = 0.8 + 0.2 * squares
    exact = torch.cat((precision * start - 0.2 * slope, -0.5 * precision))
    return ((steps.mean(0) - exact).abs() / (steps.std(0) / math.sqrt(repeats))).max().item()


def gaussian_vi_logistic() -> float:
    """Logistic regression; the bound is integrated on a Gauss-Legendre grid."""
    X, y = classification()
    x, w = _legendre()

    def expected_loss(center: Tensor, variance: Tensor) -> Tensor:
        f = center + variance.sqrt() * x[:, None]
        return (w @ F.softplus(f) - y * center).sum()

    return _against_scipy(LinearLoss(inputs=X, targets=y, likelihood="bernoulli"), expected_loss)


def gaussian_vi_poisson() -> float:
    """Poisson regression, whose bound has a closed form."""
    X, y = counts()

    def expected_loss(center: Tensor, variance: Tensor) -> Tensor:
        return ((center + 0.5 * variance).exp() - y * center).sum()

    return _against_scipy(LinearLoss(inputs=X, targets=y, likelihood="poisson"), expected_loss)


def _against_scipy(loss: LinearLoss, expected_loss: Callable[[Tensor, Tensor], Tensor]) -> float:
    """Mean and covariance at rest, beside the minimum of the negative evidence lower bound in (m, L), V = LLᵀ."""
    d = loss.inputs.shape[-1]
    lower = torch.tril_indices(d, d)

    def unpack(flat: Tensor) -> tuple[Tensor, Tensor]:
        return flat[:d], torch.zeros(d, d, dtype=flat.dtype).index_put((lower[0], lower[1]), flat[d:])

    def bound(flat: Tensor) -> Tensor:
        m, L = unpack(flat)
        variance = ((loss.inputs @ L) ** 2).sum(-1)
        prior = 0.5 * (m @ m + (L**2).sum()) - L.diagonal().abs().log().sum()
        return expected_loss(loss.inputs @ m, variance) + prior

    unit = torch.eye(d, dtype=torch.float64)
    m, L = unpack(minimum(bound, torch.cat((torch.zeros_like(unit[0]), unit[lower[0], lower[1]]))))
    algorithm = algorithms.gaussian_vi(Gaussian.standard(d), lr=0.5, nodes=60)
    q = algorithm.run(torch.zeros_like(unit[0]), loss, 500, tolerance=1e-12)
    return furthest((q.mean, m), (q.covariance, L @ L.T))


def _legendre(nodes: int = 400, width: float = 12.0) -> tuple[Tensor, Tensor]:
    """Nodes and weights of E[f(x)], x ~ N(0, 1), by Gauss-Legendre on ±width standard deviations."""
    x, w = np.polynomial.legendre.leggauss(nodes)
    density = np.exp(-0.5 * (width * x) ** 2) / math.sqrt(2.0 * math.pi)
    return torch.as_tensor(width * x), torch.as_tensor(width * w * density)
