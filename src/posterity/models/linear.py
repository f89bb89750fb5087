"""Linear regression with Gaussian noise of unknown precision, by message passing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import RegressorMixin
from torch import Tensor

from posterity.families import Gamma
from posterity.graph import LinearFactor, Model, Shrinkage
from posterity.models._base import seed_of
from posterity.models._linear import VAGUE, LinearModel, around


class BayesianRidge(RegressorMixin, LinearModel):  # type: ignore[misc]
    """y ~ N(xᵀw, 1/τ), w ~ N(0, 1/α), with gamma priors on τ and α: q(w) q(α) q(τ) by variational message passing.

    Args:
        fit_intercept: Whether to learn an intercept, which is not shrunk.
        relevance: A precision α_j for each weight (automatic relevance determination) instead of one for all.
        max_iter: Sweeps, at most.
        tol: Stop when no natural parameter moves by more than this, relative to the largest of its kind.

    Attributes:
        posterior_: {"w": Gaussian, "alpha": Gamma, "noise": Gamma}; the intercept is the last of w. Inputs so far from
            zero that double precision cannot tell weights from intercept have predictions, but no such Gaussian.
        coef_, intercept_: The posterior mean of w.
        lower_bounds_, n_iter_, converged_: The evidence bound before the first sweep and after each; how many.

    Examples:
        >>> X = np.linspace(-1, 1, 40).reshape(-1, 1)
        >>> model = BayesianRidge().fit(X, 3 * X[:, 0] + 1 + 0.1 * np.cos(50 * X[:, 0]))
        >>> mean, std = model.predict([[0.5], [9.0]], return_std=True)
        >>> mean.round(1), bool(std[1] > std[0])
        (array([ 2.5, 28. ]), True)
    """

    def __init__(
        self, *, fit_intercept: bool = True, relevance: bool = False, max_iter: int = 1000, tol: float = 1e-6
    ) -> None:
        self.fit_intercept = fit_intercept
        self.relevance = relevance
        self.max_iter = max_iter
        self.tol = tol

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from inputs X (n, d) and targets y (n,)."""
        inputs, targets = self._tensors(X, y, reset=True, y_numeric=True)
        y = self._started(inputs, targets)
        self._keep(self._learn(self._model(inputs, y), self._first(inputs, y)))
        return self

    def _started(self, inputs: Tensor, targets: np.ndarray) -> Tensor:
        """The first targets, less their level: from here on level, centre and what is vague are known."""
        self._begin(inputs)
        self._level = float(targets.mean()) if self.fit_intercept else 0.0
        y = torch.as_tensor(targets, dtype=torch.float64) - self._level
        squares = self._design(inputs if self.fit_intercept else inputs - inputs.mean(0)).square().mean(0)
        spread = y.square().mean().item()
        # What is vague depends on the units: 1/w_j² of weights that would make outputs as large as the targets, and the
        # size of squared noise. One row alone is as large as its level, and says nothing of the noise.
        self._sizes = torch.where(squares > 0.0, squares, 1.0) / (spread or self._level**2 or 1.0)
        self._unit = spread or 1.0
        return y

    def _model(self, inputs: Tensor, y: Tensor) -> Model:
        d, design = inputs.shape[-1], self._design(inputs)
        alpha, noise = Gamma(VAGUE, VAGUE / self._shrunk(d)), Gamma(VAGUE, VAGUE * self._unit)
        prior = {"w": around(torch.zeros_like(self._sizes), VAGUE * self._sizes), "alpha": alpha, "noise": noise}
        return Model(prior, [LinearFactor("w", "noise", design, y), Shrinkage("w", "alpha", d)])

    def _first(self, inputs: Tensor, y: Tensor) -> dict[str, Any]:
        return {
            "w": around(torch.zeros_like(self._sizes), self._sizes),
            "alpha": Gamma(1.0, 1.0 / self._shrunk(inputs.shape[-1])),
            "noise": Gamma(1.0, y.var(correction=0).item() or VAGUE * self._unit),
        }

    def _shrunk(self, d: int) -> Tensor:
        """The sizes that α has: one for each of d weights, or one for all."""
        return self._sizes[:d] if self.relevance else self._sizes[:d].mean()

    def _minibatch(self, X: Any, y: Any, total: int) -> None:
        known = hasattr(self, "_beliefs")
        inputs, targets = self._tensors(X, y, reset=not known, y_numeric=True)
        y = torch.as_tensor(targets, dtype=torch.float64) - self._level if known else self._started(inputs, targets)
        self._step(self._model(inputs, y), None if known else self._first(inputs, y), total)

    def partial_fit(self, X: Any, y: Any, *, total_samples: int | None = None) -> Self:
        """Learn from more rows: yesterday's posterior is today's prior (and has the shrinkage in it already).

        Args:
            X: New rows (n, d).
            y: Their targets (n,).
            total_samples: The size of the whole data set, where rows are a minibatch of it: one step of stochastic
                variational inference. Unless given, rows are news.
        """
        if total_samples is not None:
            self._minibatch(X, y, total_samples)
            return self
        if not hasattr(self, "_beliefs"):
            return self.fit(X, y)
        inputs, targets = self._tensors(X, y, y_numeric=True)
        y = torch.as_tensor(targets, dtype=torch.float64) - self._level
        factor = LinearFactor("w", "noise", self._design(inputs), y)
        fit = self._learn(Model({name: self._beliefs[name] for name in ("w", "noise")}, [factor]), {})
        self._keep(replace(fit, q={**self._beliefs, **fit.q}))
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The expected target of each row, and the standard deviation of the predictive where asked for."""
        mean, variance = self._outputs(X)
        if not return_std:
            return mean.numpy()
        noise = self._beliefs["noise"]
        return mean.numpy(), (variance + noise.rate / (noise.shape - 1.0).clamp(min=VAGUE)).sqrt().numpy()

    def sample(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Targets drawn from the posterior predictive, (n_samples, n)."""
        generator = torch.Generator().manual_seed(seed_of(random_state))
        f = self._draw(X, n_samples, generator)
        noise = torch.randn(f.shape, dtype=torch.float64, generator=generator)
        return (f + noise / self._beliefs["noise"].sample(n_samples, generator).sqrt().unsqueeze(-1)).numpy()
