"""Conjugate posteriors beside scipy's integration of prior times likelihood."""

from __future__ import annotations

import math

import numpy as np
import torch

from posterity import algorithms
from posterity.families import Beta, Dirichlet, Family, Gamma, NormalGamma
from posterity.table.comparisons._data import furthest, normal


def _densities(q: Family, points: np.ndarray) -> np.ndarray:
    return q.log_prob(torch.as_tensor(points)).exp().numpy()


def beta_bernoulli() -> float:
    """Posterior densities of a probability."""
    from scipy import integrate, stats

    y = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    q = algorithms.beta_bernoulli(Beta(2.0, 3.5), y)

    def joint(x: float) -> float:
        return float(stats.beta.pdf(x, 2.0, 3.5) * stats.bernoulli.pmf(y.numpy(), x).prod())

    evidence = integrate.quad(joint, 0.0, 1.0, epsabs=0.0, epsrel=1e-12)[0]
    points = np.linspace(0.1, 0.9, 9)
    return furthest((_densities(q, points), [joint(x) / evidence for x in points]))


def gamma_poisson() -> float:
    """Posterior densities of a rate."""
    from scipy import integrate, stats

    y = torch.tensor([3.0, 0.0, 2.0, 5.0, 1.0], dtype=torch.float64)
    q = algorithms.gamma_poisson(Gamma(2.0, 1.5), y)

    def joint(x: float) -> float:
        return float(stats.gamma.pdf(x, 2.0, scale=1 / 1.5) * stats.poisson.pmf(y.numpy(), x).prod())

    evidence = integrate.quad(joint, 0.0, 30.0, epsabs=0.0, epsrel=1e-12, limit=200)[0]
    points = np.linspace(0.2, 5.0, 9)
    return furthest((_densities(q, points), [joint(x) / evidence for x in points]))


def dirichlet_categorical() -> float:
    """Posterior densities of three probabilities."""
    from scipy import integrate, stats

    y = np.array([0, 2, 2, 1, 2, 0])
    prior = np.array([1.5, 2.0, 1.2])
    q = algorithms.dirichlet_categorical(Dirichlet(prior), torch.as_tensor(y))

    def joint(a: float, b: float) -> float:
        theta = np.array([a, b, 1.0 - a - b])
        return float(stats.dirichlet.pdf(theta, prior) * theta[y].prod())

    def integrand(b: float, a: float) -> float:
        return joint(a, b)

    evidence = integrate.dblquad(integrand, 0.0, 1.0, 0.0, lambda a: 1.0 - a, epsabs=1e-14, epsrel=1e-11)[0]
    points = np.array([[0.2, 0.3, 0.5], [0.1, 0.1, 0.8], [0.4, 0.4, 0.2]])
    return furthest((_densities(q, points), [joint(a, b) / evidence for a, b, _ in points]))


def normal_gamma() -> float:
    """Posterior densities of a mean and a precision."""
    from scipy import integrate

    y = 1.0 + 0.7 * normal(8, seed=0)
    q = algorithms.normal_gamma(NormalGamma(0.5, 2.0, 3.0, 2.0), y)
    numbers = y.numpy()

    def joint(x: float, t: float) -> float:
        prior = 4.0 * t**2 * math.exp(-2.0 * t) * math.sqrt(t / math.pi) * math.exp(-t * (x - 0.5) ** 2)
        return prior * (t / (2.0 * math.pi)) ** (len(numbers) / 2) * math.exp(-0.5 * t * sum((numbers - x) ** 2))

    evidence = integrate.dblquad(joint, 0.0, 15.0, -5.0, 7.0, epsabs=1e-16, epsrel=1e-11)[0]
    points = np.array([[0.5, 1.0], [1.0, 2.0], [0.8, 0.5]])
    return furthest((_densities(q, points), [joint(x, t) / evidence for x, t in points]))
