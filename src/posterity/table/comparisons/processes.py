"""Gaussian processes by sites: beside scikit-learn's regression, scipy's optimum and Titsias' closed form."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from posterity.gradients import Quadrature
from posterity.graph import DenseGaussian, SparseGaussian, cvi
from posterity.likelihoods import GaussianLikelihood
from posterity.table.comparisons._data import furthest, normal
from posterity.table.comparisons._minimum import minimum

NOISE = 0.1


def _kernel(a: Tensor, b: Tensor) -> Tensor:
    """exp(−½|a − b|²)."""
    return (-0.5 * (a[:, None] - b[None, :]) ** 2).exp()


def _data(n: int = 20) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.linspace(-3.0, 3.0, n, dtype=torch.float64)
    return x, torch.sin(2.0 * x) + math.sqrt(NOISE) * normal(n, seed=0), torch.linspace(-4.0, 4.0, 15).double()


def cvi_regression() -> float:
    """Predictive mean and standard deviation, and the log marginal likelihood, after one step."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF

    x, y, new = _data()
    theirs = GaussianProcessRegressor(RBF(1.0), alpha=NOISE, optimizer=None).fit(x.numpy()[:, None], y.numpy())
    mean, std = theirs.predict(new.numpy()[:, None], return_std=True)
    prior = DenseGaussian(_kernel(x, x))
    fit = cvi(prior, y, GaussianLikelihood(1.0 / NOISE), steps=1, tolerance=math.inf)
    ours, variance = prior.predict(fit.sites, _kernel(new, x), torch.ones_like(new))
    evidence = theirs.log_marginal_likelihood_value_
    return furthest((ours, mean), (variance.sqrt(), std), (fit.bounds[-1], evidence))


def cvi_classification() -> float:
    """Bernoulli: m and V at rest, beside the optimum over m = Kα, V = (K⁻¹ + W)⁻¹ (Opper and Archambeau)."""
    x, y, _ = _data(12)
    labels = (y > 0.3).double()
    K = _kernel(x, x) + 1e-3 * torch.eye(len(x), dtype=torch.float64)
    nodes, weights = (torch.as_tensor(part) for part in np.polynomial.hermite_e.hermegauss(100))
    weights = weights / math.sqrt(2.0 * math.pi)

    def posterior(flat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        alpha, width = flat[: len(x)], flat[len(x) :].exp()
        inner = torch.eye(len(x), dtype=torch.float64) + width.sqrt()[:, None] * K * width.sqrt()
        half = torch.linalg.solve_triangular(torch.linalg.cholesky(inner), width.sqrt()[:, None] * K, upper=False)
        return K @ alpha, K - half.mT @ half, inner

    def negative_bound(flat: Tensor) -> Tensor:
        mean, covariance, inner = posterior(flat)
        f = mean + covariance.diagonal().sqrt() * nodes[:, None]
        loss = (weights @ F.softplus(f) - labels * mean).sum()
        trace = torch.linalg.inv(inner).trace() - len(x)
        return loss + 0.5 * (torch.logdet(inner) + trace + mean @ flat[: len(x)])

    start = torch.cat((torch.zeros_like(x), torch.full_like(x, -1.0)))
    mean, covariance, _ = posterior(minimum(negative_bound, start))
    fit = cvi(DenseGaussian(K), labels, "bernoulli", gradient=Quadrature(100), steps=500, tolerance=1e-13)
    return furthest((fit.marginals.mean, mean), (fit.marginals.variance, covariance.diagonal()))


def cvi_sparse() -> float:
    """Predictions at new points and the bound after one step, beside Titsias' collapsed posterior."""
    x, y, new = _data(40)
    z = torch.linspace(-3.0, 3.0, 8, dtype=torch.float64)
    root = torch.linalg.cholesky(_kernel(z, z))

    def project(points: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(root, _kernel(z, points), upper=False).mT

    prior = SparseGaussian(project(x), torch.ones_like(x))
    fit = cvi(prior, y, GaussianLikelihood(1.0 / NOISE), steps=1, tolerance=math.inf)
    left_open = 1.0 - project(new).square().sum(-1)
    ours, variance = prior.predict(fit.sites, project(new), left_open)

    Kzz, Kzx, Kzn = _kernel(z, z), _kernel(z, x), _kernel(z, new)
    inner = Kzz + Kzx @ Kzx.mT / NOISE
    mean = Kzn.mT @ torch.linalg.solve(inner, Kzx @ y) / NOISE
    spread = 1.0 - (Kzn * torch.linalg.solve(Kzz, Kzn)).sum(0) + (Kzn * torch.linalg.solve(inner, Kzn)).sum(0)
    nystrom = Kzx.mT @ torch.linalg.solve(Kzz, Kzx)
    noisy = torch.distributions.MultivariateNormal(torch.zeros_like(y), nystrom + NOISE * torch.eye(len(y)).double())
    bound = noisy.log_prob(y) - 0.5 / NOISE * (len(y) - nystrom.trace())
    return furthest((ours, mean), (variance, spread), (fit.bounds[-1], bound))
