"""Gauss-Hermite quadrature: expectations under a Gaussian q, exact for polynomials."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeGuard

import numpy as np
import torch
from torch import Tensor

from posterity.errors import require, require_whole
from posterity.families import DiagonalGaussian
from posterity.families.special import LOG_2PI
from posterity.gradients._points import PointEstimator, average
from posterity.gradients.curvatures import Curvature, Hessian
from posterity.gradients.gaussian import AnyGaussian
from posterity.gradients.losses import AnyLoss, LinearLoss, Loss
from posterity.likelihoods import BernoulliLikelihood

_MOST_POINTS = 1_000_000
_MOST_NODES = 300  # beyond, the outermost weights underflow
_CHUNK = 2**14  # numbers whose moments are computed together


@dataclass(frozen=True)
class Quadrature(PointEstimator):
    """E_q[f] ≈ Σ_p w_p f(m + V^½ x_p) over the grid of Gauss-Hermite nodes x_p.

    The grid has nodesᵈ points. A `LinearLoss` needs no grid: each of its outputs f = xᵀθ is a Gaussian number,
    f ~ N(xᵀm, xᵀVx), and one dimension is enough.

        E_q[∇ℓ] = Σᵢ xᵢ E[ℓᵢ'(f)],   E_q[∇²ℓ] = Σᵢ xᵢxᵢᵀ E[ℓᵢ''(f)]

    Args:
        nodes: Nodes in each dimension. With 20, the optimum of a logistic model is good to about 1e-8; with 80 to
            the last digits.

    Examples:
        >>> q = DiagonalGaussian([0.0], [1.0])
        >>> fourth_moment = Quadrature(nodes=3).expectation(q, lambda theta: (theta**4).sum())
        >>> round(float(fourth_moment), 12)
        3.0
    """

    nodes: int = 20
    curvature: Curvature = field(default=Hessian(), init=False, repr=False)

    def __post_init__(self) -> None:
        require_whole("nodes", self.nodes)
        require(self.nodes <= _MOST_NODES, "nodes", f"at most {_MOST_NODES}", self.nodes)

    def points(self, q: AnyGaussian) -> tuple[Tensor, Tensor]:
        d = q.mean.shape[-1]
        limit = f"at most {_MOST_POINTS:,} grid points (none for a LinearLoss without regulariser or for MonteCarlo)"
        require(self.nodes**d <= _MOST_POINTS, f"Quadrature in {d} dimensions", limit, f"{self.nodes}^{d}")
        x, w = gauss_hermite(self.nodes, q.mean)
        grid = torch.cartesian_prod(*[x] * d).reshape(-1, d)
        weights = torch.cartesian_prod(*[w] * d).reshape(-1, d).prod(-1)
        if isinstance(q, DiagonalGaussian):
            return q.mean + torch.einsum("...i,pi->p...i", q.variance.sqrt(), grid), weights
        return q.mean + torch.einsum("...ij,pj->p...i", torch.linalg.cholesky(q.covariance), grid), weights

    def slope(self, q: AnyGaussian, loss: Loss) -> Tensor:
        if not _needs_no_grid(loss):
            return super().slope(q, loss)
        return self._along_outputs(q, loss)[1] @ loss.rows(q.mean)

    def derivatives(self, q: AnyGaussian, loss: AnyLoss, diagonal: bool) -> tuple[Tensor, Tensor]:
        if not _needs_no_grid(loss):
            return super().derivatives(q, loss, diagonal)
        rows, (_, slope, bend) = loss.rows(q.mean), self._along_outputs(q, loss)
        form = "...b,bi,bi->...i" if diagonal else "...b,bi,bj->...ij"
        return slope @ rows, torch.einsum(form, bend, rows, rows)

    def values(self, q: AnyGaussian, loss: Loss) -> Tensor:
        if not _needs_no_grid(loss):
            return super().values(q, loss)
        return self._along_outputs(q, loss)[0].sum(-1)

    def _along_outputs(self, q: AnyGaussian, loss: LinearLoss) -> list[Tensor]:
        """E[ℓᵢ(f)], E[ℓᵢ'(f)] and E[ℓᵢ''(f)] of every example, each (*batch, B) and times N/B."""
        rows = loss.rows(q.mean)
        center = q.mean @ rows.mT
        if isinstance(q, DiagonalGaussian):
            spread = q.variance @ (rows**2).mT
        else:
            spread = torch.einsum("bi,...ij,bj->...b", rows, q.covariance, rows)
        return [loss.weight * values for values in self._of_outputs(loss, center, spread)]

    def _of_outputs(self, loss: LinearLoss, mean: Tensor, variance: Tensor) -> list[Tensor]:
        if type(loss.likelihood) is BernoulliLikelihood:  # a class made from it may have another loss
            softplus, chance, slope = logistic_moments(mean, variance, self.nodes)
            y = loss.targets.squeeze(-1).to(mean)
            return [softplus - y * mean, chance - y, slope]
        f, weights = _outputs(mean, variance, self.nodes)
        return [average(weights, values) for values in loss.in_output(f)]


def logistic_moments(mean: Tensor, variance: Tensor, nodes: int) -> list[Tensor]:
    """E[log(1 + eᶠ)], E[σ(f)] and E[σ'(f)] for f ~ N(m, v).

    Where f is wide, σ is a step to Gauss-Hermite nodes. But σ is also the distribution function of logistic noise l,

        E[σ(f)] = P(l < f) = E_l[Φ((m − l)/√v)],

    and so on for its integral and its slope. Now Φ is the smooth one, and the trapezoidal rule in l, whose error is of
    order exp(−2π²/step), is exact to the last digits.

    Args:
        mean: m, any shape.
        variance: v, of the same shape.
        nodes: Gauss-Hermite nodes, for v up to 1.

    Examples:
        >>> m, v = torch.tensor([30.0]).double(), torch.tensor([1e4]).double()
        >>> _, chance, _ = logistic_moments(m, v, nodes=20)
        >>> chance, torch.special.ndtr(m / v.sqrt())  # so wide, all that counts is the sign
        (tensor([0.6179], dtype=torch.float64), tensor([0.6179], dtype=torch.float64))
    """
    f, weights = _outputs(mean, variance, nodes)
    softplus = torch.logaddexp(f, torch.zeros_like(f))  # that of torch.nn leaves out e⁻ᶠ from f = 20 on
    found = [average(weights, of_f) for of_f in (softplus, f.sigmoid(), f.sigmoid() * (-f).sigmoid())]
    wide = variance > 1.0
    if not wide.any():
        return found
    parts = zip(mean[wide].split(_CHUNK), variance[wide].split(_CHUNK), strict=True)
    exact = torch.cat([_over_noise(m, v.sqrt()) for m, v in parts], -1)
    return [of_f.masked_scatter(wide, of_l) for of_f, of_l in zip(found, exact, strict=True)]


def _over_noise(m: Tensor, s: Tensor) -> Tensor:
    """The three moments as sums over logistic noise, (3, n)."""
    noise = torch.linspace(-60.0, 60.0, 241, dtype=m.dtype, device=m.device).unsqueeze(-1)
    weights = 0.5 * (noise.sigmoid() * (-noise).sigmoid()).squeeze(-1)
    u = (m - noise) / s
    density, below = (-0.5 * (u**2 + LOG_2PI)).exp(), torch.special.ndtr(u)
    return torch.stack([weights @ of_l for of_l in (s * (density + u * below), below, density / s)])


def _outputs(mean: Tensor, variance: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    """The nodes of numbers f ~ N(m, v), (P, *shape), and their weights (P,)."""
    x, weights = gauss_hermite(nodes, mean)
    return mean + variance.sqrt() * x.reshape(-1, *[1] * mean.ndim), weights


def gauss_hermite(nodes: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes x and weights w with Σ w f(x) ≈ E[f(x)], x ~ N(0, 1); exact for polynomials of degree 2·nodes − 1."""
    x, w = _hermite(nodes)
    return torch.as_tensor(x).to(like), torch.as_tensor(w).to(like)


@lru_cache(maxsize=32)
def _hermite(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    x, w = np.polynomial.hermite_e.hermegauss(nodes)
    return x, w / math.sqrt(2.0 * math.pi)


def _needs_no_grid(loss: AnyLoss) -> TypeGuard[LinearLoss]:
    return isinstance(loss, LinearLoss) and loss.regulariser is None
