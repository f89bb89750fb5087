"""Gaussian processes seen at N points: what follows from their prior and a Gaussian site at each point.

A site is a term exp(b f − ½w f²) of one function value f. The posterior q(f) ∝ p(f) Π_n exp(b_n f_n − ½w_n f_n²) has
the natural parameters of the prior plus those of the sites.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from posterity.batches import one_tensor
from posterity.errors import require
from posterity.linalg import cholesky, log_det_psd, root_psd, solve_psd


@dataclass(frozen=True)
class Sites:
    """A Gaussian site exp(b f − ½w f²) at each of N points.

    Args:
        linear: b (N,).
        precision: w (N,); negative where a likelihood is not log-concave.
    """

    linear: Tensor
    precision: Tensor

    @classmethod
    def none(cls, n: int) -> Sites:
        """Sites without information."""
        return cls(torch.zeros(n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64))


@dataclass(frozen=True)
class Marginals:
    """q(f_n) at each point, and KL(q ‖ p) of the whole function."""

    mean: Tensor
    variance: Tensor
    kl: Tensor


class LatentGaussian(ABC):
    """A Gaussian prior over function values, with the solver that adds sites to it."""

    size: int

    @abstractmethod
    def marginals(self, sites: Sites) -> Marginals:
        """q(f_n) under these sites."""


class DenseGaussian(LatentGaussian):
    """f ~ N(0, K), with all of K.

    With B = I + √w K √w, well conditioned even where K is not,

        V = K − K √w B⁻¹ √w K,   m = V b,   KL = ½(log det B − tr(B⁻¹ √w K √w) + mᵀK⁻¹m).

    Negative w have no root; with K = RRᵀ, V = R(I + RᵀWR)⁻¹Rᵀ for any w that leave the inner matrix positive.

    Args:
        covariance: K (N, N).
    """

    def __init__(self, covariance: Tensor) -> None:
        covariance = one_tensor(covariance)
        require(
            covariance.ndim == 2 and covariance.shape == covariance.mT.shape, "covariance", "(N, N)", covariance.shape
        )
        even = torch.allclose(covariance, covariance.mT, equal_nan=True)  # NaN is refused where it is met
        require(even, "covariance", "a symmetric matrix", "another")
        self.covariance, self.size = covariance.to(torch.float64), len(covariance)

    def factor(self, sites: Sites) -> tuple[Tensor, Tensor, Tensor]:
        """√w, the Cholesky factor of B, and K⁻¹m = b − √w B⁻¹ √w K b, for w that are not negative."""
        root = sites.precision.clamp(min=0.0).sqrt()
        inner = torch.eye(self.size, dtype=root.dtype) + root.unsqueeze(-1) * self.covariance * root
        factor = cholesky(inner, "I + √w K √w")
        return root, factor, sites.linear - root * solve_psd(factor, root * (self.covariance @ sites.linear))

    @cached_property
    def _root(self) -> Tensor:
        return root_psd(self.covariance)

    def _solved(self, sites: Sites) -> tuple[Tensor, Tensor, Tensor]:
        """V, K⁻¹m and log det(I + KW), for w of any sign."""
        R = self._root
        inner = torch.eye(self.size, dtype=R.dtype) + R.mT @ (sites.precision.unsqueeze(-1) * R)
        factor = cholesky(inner, "the prior's precision and that of all sites")
        half = torch.linalg.solve_triangular(factor, R.mT, upper=False)
        V = half.mT @ half
        return V, sites.linear - sites.precision * (V @ sites.linear), log_det_psd(factor)

    def marginals(self, sites: Sites) -> Marginals:
        if bool((sites.precision < 0).any()):
            V, dual, log_det = self._solved(sites)
            mean, variance = V @ sites.linear, V.diagonal()
            kl = 0.5 * (log_det - (sites.precision * variance).sum() + mean @ dual)
            return Marginals(mean, variance, kl)
        root, factor, dual = self.factor(sites)
        half = torch.linalg.solve_triangular(factor, root.unsqueeze(-1) * self.covariance, upper=False)
        mean, variance = self.covariance @ dual, self.covariance.diagonal() - half.square().sum(0)
        trace = (sites.precision * variance).sum()  # of B⁻¹ √w K √w
        kl = 0.5 * (log_det_psd(factor) - trace + mean @ dual)
        return Marginals(mean, variance, kl)

    def predict(self, sites: Sites, cross: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance at new points; their covariance where `prior` is a matrix.

        Args:
            sites: The sites.
            cross: Prior covariances with the old points (n, N).
            prior: Prior variances (n,), or covariances (n, n).
        """
        if bool((sites.precision < 0).any()):
            V, dual, _ = self._solved(sites)
            W = torch.diag(sites.precision)
            taken = cross @ (W - W @ V @ W) @ cross.mT
            return cross @ dual, prior - (taken if prior.ndim == 2 else taken.diagonal())
        root, factor, dual = self.factor(sites)
        half = torch.linalg.solve_triangular(factor, root.unsqueeze(-1) * cross.mT, upper=False)
        return cross @ dual, prior - (half.mT @ half if prior.ndim == 2 else half.square().sum(0))


class SparseGaussian(LatentGaussian):
    """f = A v + e, with v ~ N(0, I) the whitened values at M inducing points, and e what they leave open.

    A = K_nz L⁻ᵀ with K_zz = LLᵀ. The sites of all points are tied through the rows of A:

        S = I + Aᵀ diag(w) A,   S m_v = Aᵀ b,   q(f_n) = N(a_nᵀm_v, a_nᵀS⁻¹a_n + k_nn − a_nᵀa_n).

    Args:
        projection: A (N, M).
        prior_variance: k_nn (N,).
    """

    def __init__(self, projection: Tensor, prior_variance: Tensor) -> None:
        self.projection, self.size = one_tensor(projection).to(torch.float64), len(projection)
        self.left_open = (one_tensor(prior_variance) - self.projection.square().sum(-1)).clamp(min=0.0)

    def weights(self, sites: Sites) -> tuple[Tensor, Tensor]:
        """m_v, and the Cholesky factor of S."""
        A = self.projection
        precision = torch.eye(A.shape[1], dtype=A.dtype) + A.mT @ (sites.precision.unsqueeze(-1) * A)
        factor = cholesky(precision, "I + Aᵀ w A")
        return solve_psd(factor, A.mT @ sites.linear), factor

    def marginals(self, sites: Sites) -> Marginals:
        mean, factor = self.weights(sites)
        covariance = torch.cholesky_inverse(factor)
        of_mean, of_variance = self.predict(sites, self.projection, self.left_open)
        kl = 0.5 * (covariance.trace() + mean @ mean - len(mean) + log_det_psd(factor))
        return Marginals(of_mean, of_variance, kl)

    def predict(self, sites: Sites, projection: Tensor, left_open: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance at points; their covariance where `left_open` is a matrix.

        Args:
            sites: The sites.
            projection: Rows of A (n, M).
            left_open: Variances (n,) or covariances (n, n) that the inducing points leave open.
        """
        mean, factor = self.weights(sites)
        half = torch.linalg.solve_triangular(factor, projection.mT, upper=False)
        return projection @ mean, left_open + (half.mT @ half if left_open.ndim == 2 else half.square().sum(0))
