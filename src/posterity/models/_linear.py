"""What linear models share: a Gaussian posterior over weights, and inputs that are centred."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from posterity.errors import InvalidInput, Undefined
from posterity.families import Gaussian
from posterity.graph import Fit, Model, svi_step, vmp
from posterity.models._base import BayesianEstimator
from posterity.rule import robbins_monro

VAGUE = 1e-6  # the prior precision of an intercept, and the shape and rate of vague gamma priors


class LinearModel(BayesianEstimator):
    """Weights w with a Gaussian posterior; where there is an intercept, inputs are centred and end in a column of ones.

    Columns far from zero look like columns of ones: uncentred, their weights would be lost in the intercept.
    """

    fit_intercept: bool
    max_iter: int
    tol: float
    n_batches_: int
    _beliefs: dict[str, Any]  # about w, the last of which is the output at the centre, less the level
    _centre: Tensor
    _level: float = 0.0

    @property
    def posterior_(self) -> dict[str, Any]:
        """Beliefs about the weights and, last, the intercept: the output at zero instead of that at the centre."""
        check_is_fitted(self)
        beliefs = self._beliefs
        if not self.fit_intercept:
            return dict(beliefs)
        w = beliefs["w"]
        to_centre = torch.eye(len(w.mean), dtype=w.mean.dtype)
        to_centre[-1, :-1] = self._centre
        mean = torch.cat((w.mean[:-1], w.mean[-1:] - self._centre @ w.mean[:-1] + self._level))
        reason = "inputs so far from zero correlate weights and intercept to the last digit; use predict and sample"
        try:
            at_zero = Gaussian(mean, to_centre.mT @ w.precision @ to_centre)
        except InvalidInput as error:
            raise Undefined(reason) from error
        if not torch.allclose(at_zero.variance[:-1], w.variance[:-1], rtol=1e-3, atol=0.0):
            raise Undefined(reason)
        return {**beliefs, "w": at_zero}

    def _begin(self, X: Tensor) -> None:
        """Centre on the first rows; later ones are about the same weights."""
        self._centre, self.n_batches_ = X.mean(0), 0

    def _design(self, X: Tensor) -> Tensor:
        return torch.cat((X - self._centre, torch.ones_like(X[:, :1])), -1) if self.fit_intercept else X

    def _outputs(self, X: Any) -> tuple[Tensor, Tensor]:
        """Mean and variance of f = xᵀw for each row."""
        check_is_fitted(self)
        design, w = self._design(self._tensor(X)), self._beliefs["w"]
        return design @ w.mean + self._level, torch.einsum("bi,ij,bj->b", design, w.covariance, design)

    def _draw(self, X: Any, n_samples: int, generator: torch.Generator) -> Tensor:
        """Outputs f of weights drawn from the posterior, (n_samples, n)."""
        check_is_fitted(self)
        return self._beliefs["w"].sample(n_samples, generator) @ self._design(self._tensor(X)).mT + self._level

    def _learn(self, model: Model, start: dict[str, Any], backtracking: bool = False) -> Fit:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "λ still moves", RuntimeWarning)
            return vmp(model, start, steps=self.max_iter, tolerance=self.tol, backtracking=backtracking)

    def _step(self, model: Model, first: dict[str, Any] | None, total: int) -> None:
        """A step of stochastic variational inference, on rows that represent `total`."""
        self.n_batches_ += 1
        q, bound, change = svi_step(model, first or self._beliefs, robbins_monro()(self.n_batches_), n=total)
        self._keep(Fit(q, [bound], 1, change <= self.tol))

    def _keep(self, fit: Fit) -> None:
        self._beliefs = dict(fit.q)
        self.coef_, self.intercept_ = fit.q["w"].mean.numpy(), 0.0
        if self.fit_intercept:
            self.coef_, at_centre = self.coef_[:-1], self.coef_[-1] + self._level
            self.intercept_ = float(at_centre - self.coef_ @ self._centre.numpy())
        self.lower_bounds_, self.n_iter_, self.converged_ = fit.bounds, fit.steps, fit.converged


def around(mean: Tensor, precision: Tensor) -> Gaussian:
    """Independent weights."""
    return Gaussian(mean, torch.diag(precision))
