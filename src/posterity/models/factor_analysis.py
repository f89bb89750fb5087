"""Factor analysis by EM, with missing entries."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from posterity.errors import require_whole
from posterity.families import Gaussian
from posterity.models._base import BayesianEstimator
from posterity.progress import track

_LEAST = 1e-12  # of a column's variance, that noise keeps where factors explain it all


class FactorAnalysis(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BayesianEstimator):  # type: ignore[misc]
    """x = Wz + m + ε, z ~ N(0, I), ε_j ~ N(0, ψ_j): what many columns have in common.

    The posterior of z is exact, q(z) = N with precision I + WᵀΨ⁻¹W over the entries that are seen; the parameters are
    points. NaN entries are missing.

    Args:
        n_components: Number of factors.
        tol: Stop when the log-likelihood gains less than this for each row.
        max_iter: Iterations, at most.
        random_state: Of the first loadings.

    Attributes:
        components_: Wᵀ (factors, d).
        mean_: m (d,).
        noise_variance_: ψ (d,).
        posterior_: q(z) of the rows it was learnt from, a `Gaussian` with a member for each.
        lower_bounds_: Log-likelihood before each iteration; it never falls.
        n_iter_: Iterations taken.

    Examples:
        >>> z, noise = np.random.default_rng(0).normal(size=(2, 200, 3))
        >>> model = FactorAnalysis(1, random_state=0).fit(z[:, :1] * [[2.0, -2.0, 0.0]] + noise)
        >>> np.abs(model.components_).round(1), model.noise_variance_.round(1)
        (array([[2. , 1.9, 0. ]]), array([1. , 1. , 0.9]))
    """

    def __init__(
        self, n_components: int = 1, *, tol: float = 1e-6, max_iter: int = 1000, random_state: Any = None
    ) -> None:
        self.n_components = n_components
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from rows X (n, d)."""
        X, seen = self._rows(X, reset=True)
        # Far from zero, squares would lose the digits of the variances.
        shift = X.sum(0) / seen.sum(0).clamp(min=1.0)
        X = seen * (X - shift)
        require_whole("n_components", self.n_components)
        self.mean_ = np.zeros(X.shape[1])
        spread = X.square().sum(0) / seen.sum(0).clamp(min=1.0)
        draws = torch.randn(X.shape[1], self.n_components, dtype=torch.float64, generator=self._generator())
        self._loadings = draws * (0.5 * spread / self.n_components).sqrt().unsqueeze(-1)
        self._least = _LEAST * torch.where(spread > 0.0, spread, 1.0)
        self.noise_variance_ = torch.maximum(0.5 * spread, self._least).numpy()
        self.lower_bounds_: list[float] = []
        for _ in track(range(self.max_iter), "expectation maximisation", total=self.max_iter):
            self.posterior_ = self._posterior(X, seen)
            self.lower_bounds_.append(float(self._log_density(X, seen).sum()))
            if len(self.lower_bounds_) > 1 and np.diff(self.lower_bounds_[-2:])[0] < self.tol * len(X):
                break
            self._maximise(X, seen)
        self.components_, self.n_iter_ = self._loadings.mT.numpy(), len(self.lower_bounds_)
        self.mean_ += shift.numpy()
        self._n_features_out = self.n_components
        return self

    def transform(self, X: Any) -> np.ndarray:
        """E[z] of each row."""
        check_is_fitted(self)
        return self._posterior(*self._rows(X)).mean.numpy()

    def score_samples(self, X: Any) -> np.ndarray:
        """Log-density of the entries seen of each row."""
        check_is_fitted(self)
        return self._log_density(*self._rows(X)).numpy()

    def score(self, X: Any, y: Any = None) -> float:
        """The average of `score_samples`."""
        return float(self.score_samples(X).mean())

    def get_covariance(self) -> np.ndarray:
        """WWᵀ + Ψ."""
        check_is_fitted(self)
        return self.components_.T @ self.components_ + np.diag(self.noise_variance_)

    def sample(self, n_samples: int = 1) -> np.ndarray:
        """Rows drawn from the model."""
        check_is_fitted(self)
        shape, generator = (n_samples, self.n_features_in_), self._generator()
        z = torch.randn(n_samples, self.n_components, dtype=torch.float64, generator=generator)
        noise = torch.randn(shape, dtype=torch.float64, generator=generator)
        return z.numpy() @ self.components_ + self.mean_ + noise.numpy() * np.sqrt(self.noise_variance_)

    def _rows(self, X: Any, reset: bool = False) -> tuple[Tensor, Tensor]:
        """The rows with zeros where missing, and a one for each entry that is there."""
        X = self._tensor(X, reset=reset, ensure_all_finite="allow-nan")
        return X.nan_to_num(0.0), (~X.isnan()).double()

    def _posterior(self, X: Tensor, seen: Tensor) -> Gaussian:
        """S_n = I + Σ_j w_j w_jᵀ/ψ_j,  S_n m_n = Σ_j w_j (x_nj − m_j)/ψ_j, over the entries seen."""
        W, precision = self._loadings, 1.0 / torch.as_tensor(self.noise_variance_)
        weights = seen * precision
        one = torch.eye(self.n_components, dtype=torch.float64)
        S = one + torch.einsum("nj,jk,jl->nkl", weights, W, W)
        pull = (weights * (X - torch.as_tensor(self.mean_))) @ W
        return Gaussian(torch.linalg.solve(S, pull), S)

    def _log_density(self, X: Tensor, seen: Tensor) -> Tensor:
        """log N(x_n | m, WWᵀ + Ψ) of the entries seen, through the k × k matrix S_n."""
        variance = torch.as_tensor(self.noise_variance_)
        q, away = self._posterior(X, seen), seen * (X - torch.as_tensor(self.mean_))
        noise = (seen * torch.log(2.0 * torch.pi * variance) + away**2 / variance).sum(-1)
        explained = (q.mean * (q.precision @ q.mean.unsqueeze(-1)).squeeze(-1)).sum(-1)
        return -0.5 * (noise - explained + torch.logdet(q.precision))

    def _maximise(self, X: Tensor, seen: Tensor) -> None:
        """The M-step: each column's regression on the factors and a constant, over the rows where it is seen."""
        q = self.posterior_
        z = torch.cat((q.mean, torch.ones_like(q.mean[:, :1])), -1)
        second = z.unsqueeze(-1) * z.unsqueeze(-2)
        second[:, :-1, :-1] += q.covariance
        inner = torch.einsum("nj,nkl->jkl", seen, second)
        # A column that is nowhere seen has nothing to regress on: its loadings go to zero.
        inner = inner + 1e-12 * torch.eye(z.shape[-1], dtype=torch.float64)
        outer = (seen * X).mT @ z
        solution = torch.linalg.solve(inner, outer)
        squares = (seen * X**2).sum(0) - (solution * outer).sum(-1)
        self._loadings, self.mean_ = solution[:, :-1], solution[:, -1].numpy()
        self.noise_variance_ = torch.maximum(squares / seen.sum(0).clamp(min=1.0), self._least).numpy()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags
