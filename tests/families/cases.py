"""The table of families under test: a newcomer adds one line and every identity runs over it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from posterity.families import (
    Bernoulli,
    Beta,
    Categorical,
    DiagonalGaussian,
    Dirichlet,
    Family,
    FixedGaussian,
    Gamma,
    Gaussian,
    InverseGamma,
    NormalGamma,
    NormalWishart,
    Poisson,
    Product,
    SignBernoulli,
    UnitGamma,
    Wishart,
)

DOUBLE = torch.float64
Nodes = tuple[Tensor, Tensor]  # θ (N, *event) and quadrature weights (N,)


class Draw:
    """Random parameters; `spread` widens their range."""

    def __init__(self, seed: int, spread: float = 0.3) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.spread = spread

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=DOUBLE)

    def positive(self, *shape: int, around: float = 2.0) -> Tensor:
        return around * (self.spread * self.normal(*shape)).clamp(-3.0 * self.spread, 3.0 * self.spread).exp()

    def definite(self, *shape: int) -> Tensor:
        rotation, _ = torch.linalg.qr(self.normal(*shape, shape[-1]))
        return (rotation * self.positive(*shape).unsqueeze(-2)) @ rotation.mT


# Quadrature: the trapezoidal rule on the whole line converges geometrically for analytic integrands, so every space
# of θ is mapped to lines t.


def line(low: float, high: float, step: float) -> Nodes:
    t = torch.arange(low, high, step, dtype=DOUBLE)
    return t, torch.full_like(t, step)


def grid(*axes: Nodes) -> Nodes:
    points = torch.cartesian_prod(*(t for t, _ in axes)).reshape(-1, len(axes))
    return points, torch.cartesian_prod(*(w for _, w in axes)).reshape(-1, len(axes)).prod(-1)


def vectors(q: Family) -> Nodes:
    return grid(*[line(-14.0, 14.0, 0.2)] * q.mean.shape[-1])


def positive_numbers(q: Family) -> Nodes:
    t, w = line(-45.0, 6.0, 0.05)
    return t.exp(), w * t.exp()


def inverse_positive_numbers(q: Family) -> Nodes:
    t, w = line(-6.0, 45.0, 0.05)
    return t.exp(), w * t.exp()


def probabilities(q: Family) -> Nodes:
    t, w = line(-34.0, 34.0, 0.1)
    return t.sigmoid(), w * t.sigmoid() * (-t).sigmoid()


def simplex(q: Family) -> Nodes:
    t, w = grid(*[line(-34.0, 34.0, 0.25)] * 2)
    theta = torch.cat((t, torch.zeros_like(t[:, :1])), -1).softmax(-1)
    return theta, w * theta.prod(-1)


def definite_matrices(q: Family) -> Nodes:
    """2 × 2 matrices Θ = (LA)(LA)ᵀ, W = LLᵀ, A = (e^a, 0; b, e^c): dΘ = det(W)^{3/2} 4 e^{3a} e^{2c} da db dc."""
    t, w = grid(line(-9.0, 2.4, 0.125), line(-9.5, 9.5, 0.5), line(-9.0, 2.4, 0.125))
    a, b, c = t[:, 0].exp(), t[:, 1], t[:, 2].exp()
    root = torch.linalg.cholesky(q.scale) @ torch.stack((a, torch.zeros_like(a), b, c), -1).reshape(-1, 2, 2)
    return root @ root.mT, w * 4.0 * a**3 * c**2 * q.scale.det() ** 1.5


def number_and_precision(q: Family) -> Nodes:
    """x = m + s/√τ, so that one grid of s fits every τ."""
    t, w = grid(line(-18.0, 18.0, 0.3), line(-40.0, 7.5, 0.1))
    precision = t[:, 1].exp()
    x = q.mean.flatten()[0] + t[:, 0] / precision.sqrt()
    return torch.stack((x, precision), -1), w * precision.sqrt()


def stacked_number_and_precision(q: Family) -> Nodes:
    theta, w = number_and_precision(q)
    return theta.unsqueeze(-1), w  # (N, 2, 1): d = 1 on top of a 1 × 1 matrix


def states(q: Family) -> Nodes:
    theta = q.support()
    return theta, torch.ones(len(theta), dtype=DOUBLE)


def counts(q: Family) -> Nodes:
    return line(0.0, 80.0, 1.0)


def vector_and_positive(q: Family) -> Nodes:
    (x, wx), (y, wy) = line(-14.0, 14.0, 0.2), positive_numbers(q)
    return grid((x, wx), (y, wy))


# Densities from outside, at θ (N, *event), for a member without batch axes.


def numpy(*tensors: Tensor) -> list[np.ndarray]:
    return [t.detach().numpy() for t in tensors]


def of_torch(q: Family, theta: Tensor) -> Tensor:
    return q.to_torch().log_prob(theta)


def poisson(q: Family, theta: Tensor) -> Tensor:
    return torch.as_tensor(stats.poisson.logpmf(*numpy(theta, q.rate)))


def inverse_gamma(q: Family, theta: Tensor) -> Tensor:
    x, a, b = numpy(theta, q.shape, q.scale)
    return torch.as_tensor(stats.invgamma.logpdf(x, a, scale=b))


def wishart(q: Family, theta: Tensor) -> Tensor:
    law = stats.wishart(q.degrees.item(), q.scale.numpy())
    return torch.as_tensor([law.logpdf(matrix) for matrix in theta.numpy()])


def signs(q: Family, theta: Tensor) -> Tensor:
    probability = 1.0 / (1.0 + np.exp(-2.0 * q.natural[0].numpy()))
    return torch.as_tensor(stats.bernoulli.logpmf((theta.numpy() + 1) / 2, probability).sum(-1))


def normal_gamma(q: Family, theta: Tensor) -> Tensor:
    x, precision = numpy(*theta.unbind(-1))
    m, k, a, b = numpy(q.location, q.strength, q.shape, q.rate)
    gamma = stats.gamma.logpdf(precision, a, scale=1 / b)
    return torch.as_tensor(gamma + stats.norm.logpdf(x, m, 1 / np.sqrt(k * precision)))


def normal_wishart(q: Family, theta: Tensor) -> Tensor:
    m, k, n, W = numpy(q.location, q.strength, q.degrees, q.scale)
    values = []
    for x, precision in zip(*numpy(*q.split(theta)), strict=True):
        values.append(stats.wishart.logpdf(precision, float(n), W))
        values[-1] += stats.multivariate_normal.logpdf(x, m, np.linalg.inv(k * precision))
    return torch.as_tensor(np.stack(values))


def gaussian_and_gamma(q: Family, theta: Tensor) -> Tensor:
    pieces = zip(q.factors, (theta[..., :-1], theta[..., -1]), strict=True)
    return sum(factor.to_torch().log_prob(part) for factor, part in pieces)


@dataclass(frozen=True)
class Case:
    """A family: how to make a member, its log-density from outside, nodes that integrate over its θ."""

    make: Callable[..., Family]  # (draw, *batch) -> member
    density: Callable[[Family, Tensor], Tensor]
    nodes: Callable[[Family], Nodes]


CASES: dict[str, Case] = {
    "Gaussian": Case(lambda r, *b: Gaussian(r.normal(*b, 2), r.definite(*b, 2)), of_torch, vectors),
    "DiagonalGaussian": Case(lambda r, *b: DiagonalGaussian(r.normal(*b, 2), r.positive(*b, 2)), of_torch, vectors),
    "FixedGaussian": Case(lambda r, *b: FixedGaussian(r.normal(*b, 2), [[2.0, 0.5], [0.5, 1.0]]), of_torch, vectors),
    "Bernoulli": Case(lambda r, *b: Bernoulli(r.normal(*b, 3)), of_torch, states),
    "SignBernoulli": Case(lambda r, *b: SignBernoulli(r.normal(*b, 3)), signs, states),
    "Categorical": Case(lambda r, *b: Categorical(r.normal(*b, 3)), of_torch, states),
    "Poisson": Case(lambda r, *b: Poisson(r.positive(*b)), poisson, counts),
    "Gamma": Case(lambda r, *b: Gamma(r.positive(*b), r.positive(*b)), of_torch, positive_numbers),
    "InverseGamma": Case(
        lambda r, *b: InverseGamma(3.0 + r.positive(*b), r.positive(*b)), inverse_gamma, inverse_positive_numbers
    ),
    "UnitGamma": Case(lambda r, *b: UnitGamma(r.positive(*b)), of_torch, positive_numbers),
    "Beta": Case(lambda r, *b: Beta(1.0 + r.positive(*b), 1.0 + r.positive(*b)), of_torch, probabilities),
    "Dirichlet": Case(lambda r, *b: Dirichlet(1.0 + r.positive(*b, 3)), of_torch, simplex),
    "Wishart": Case(lambda r, *b: Wishart(4.0 + r.positive(*b), r.definite(*b, 2)), wishart, definite_matrices),
    "NormalGamma": Case(
        lambda r, *b: NormalGamma(r.normal(*b), r.positive(*b), 1.5 + r.positive(*b), r.positive(*b)),
        normal_gamma,
        number_and_precision,
    ),
    "NormalWishart": Case(
        lambda r, *b: NormalWishart(r.normal(*b, 1), r.positive(*b), 3.0 + r.positive(*b), r.definite(*b, 1)),
        normal_wishart,
        stacked_number_and_precision,
    ),
    "Product": Case(
        lambda r, *b: Product(Gaussian(r.normal(*b, 1), r.definite(*b, 1)), Gamma(r.positive(*b), r.positive(*b))),
        gaussian_and_gamma,
        vector_and_positive,
    ),
}
