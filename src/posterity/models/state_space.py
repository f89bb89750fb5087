"""Linear Gaussian state-space models: filter, smoother, forecasts, and their parameters by EM."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from posterity.algorithms import LinearStateSpace
from posterity.errors import require, require_whole
from posterity.graph import StateBeliefs, filter_states, smooth_states
from posterity.linalg import root_psd, symmetrise
from posterity.models._base import BayesianEstimator
from posterity.progress import track


class LinearGaussianStateSpace(BayesianEstimator):
    """x₁ ~ N(m₁, P₁), x_t ~ N(A x_{t−1}, Q), y_t ~ N(C x_t, R): hidden states x, observations y.

    Sequences are arrays (T, k) with NaN where observations are missing; for EM, a row is missing as a whole.

    Args:
        n_states: Dimension of the states.
        model: The initial `LinearStateSpace`; it is used unchanged with `max_iter=0`.
        max_iter: Iterations of EM, at most.
        tol: Stop when the log-likelihood gains less than this for each row.
        random_state: Of the first parameters.

    Attributes:
        model_: The `LinearStateSpace` learnt.
        posterior_: The smoothed states of the sequence it was learnt from.
        lower_bounds_: Log-likelihood before each iteration and after the last; it never falls.
        n_iter_: Iterations taken.
    """

    def __init__(
        self,
        n_states: int = 2,
        *,
        model: LinearStateSpace | None = None,
        max_iter: int = 50,
        tol: float = 1e-4,
        random_state: Any = None,
    ) -> None:
        self.n_states = n_states
        self.model = model
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the parameters from a sequence X (T, k) by EM."""
        require_whole("n_states", self.n_states)
        seen = self._sequence(X, reset=True)
        holes = seen.isnan()
        whole = bool((holes.all(-1) | ~holes.any(-1)).all())
        require(whole or self.max_iter == 0, "X", "rows that are observed or missing as a whole, for EM", "parts")
        there = seen[~holes.any(-1)]
        varies = len(there) > 1 and bool((there.std(0) > 0).all())
        given = self.model is not None and self.max_iter == 0
        require(varies or given, "X", "at least 2 rows observed, and columns that vary, to learn from", "others")
        self.model_ = self._first(seen) if self.model is None else self.model
        self.posterior_ = smooth_states(self.model_, seen)
        self.lower_bounds_ = [self.posterior_.log_likelihood]
        for _ in track(range(self.max_iter), "expectation maximisation", total=self.max_iter):
            self.model_ = _maximised(self.posterior_, seen)
            self.posterior_ = smooth_states(self.model_, seen)
            self.lower_bounds_.append(self.posterior_.log_likelihood)
            if self.lower_bounds_[-1] - self.lower_bounds_[-2] < self.tol * len(seen):
                break
        self.n_iter_ = len(self.lower_bounds_) - 1
        return self

    def filter(self, X: Any) -> StateBeliefs:
        """p(x_t | y₁ … y_t) at every step."""
        check_is_fitted(self)
        return filter_states(self.model_, self._sequence(X))

    def smooth(self, X: Any) -> StateBeliefs:
        """p(x_t | y₁ … y_T) at every step."""
        check_is_fitted(self)
        return smooth_states(self.model_, self._sequence(X))

    def predict(self, X: Any, steps: int = 1, return_std: bool = False) -> Any:
        """The observations expected at the steps that follow X, (steps, k)."""
        check_is_fitted(self)
        require_whole("steps", steps)
        seen = self._sequence(X)
        later = torch.cat((seen, torch.full((steps, seen.shape[1]), torch.nan, dtype=torch.float64)))
        states, C = filter_states(self.model_, later), self.model_.observation
        mean = states.mean[-steps:] @ C.mT
        if not return_std:
            return mean.numpy()
        spread = C @ states.covariance[-steps:] @ C.mT + self.model_.observation_noise
        return mean.numpy(), spread.diagonal(dim1=-2, dim2=-1).sqrt().numpy()

    def score(self, X: Any, y: Any = None) -> float:
        """Log-likelihood of a sequence."""
        return self.filter(X).log_likelihood

    def sample(self, n_samples: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """A sequence drawn from the model: observations (n, k) and states (n, d)."""
        check_is_fitted(self)
        require_whole("n_samples", n_samples)
        m, generator = self.model_, self._generator()

        def noise(covariance: Tensor) -> Tensor:
            draws = torch.randn(n_samples, len(covariance), dtype=torch.float64, generator=generator)
            return draws @ root_psd(covariance).mT

        moves, around = noise(m.transition_noise), noise(m.observation_noise)
        states = [m.initial_mean + noise(m.initial_covariance)[0]]
        for move in moves[1:]:
            states.append(m.transition @ states[-1] + move)
        chain = torch.stack(states)
        return (chain @ m.observation.mT + around).numpy(), chain.numpy()

    def _sequence(self, X: Any, reset: bool = False) -> Tensor:
        return self._tensor(X, reset=reset, ensure_all_finite="allow-nan")

    def _first(self, seen: Tensor) -> LinearStateSpace:
        """States that linger, seen through a random lens, with noise of the size of the data."""
        d, k = self.n_states, seen.shape[1]
        scale = seen[~seen.isnan().any(-1)].var(0)
        lens = torch.randn(k, d, dtype=torch.float64, generator=self._generator()) * scale.sqrt().unsqueeze(-1)
        one = torch.eye(d, dtype=torch.float64)
        return LinearStateSpace(0.9 * one, 0.2 * one, lens, torch.diag(scale), torch.zeros_like(one[0]), one)


def _maximised(states: StateBeliefs, seen: Tensor) -> LinearStateSpace:
    """The M-step: regressions of each state on the one before, and of the observations on the states."""
    assert states.lagged is not None
    mean, spread, lagged, there = states.mean, states.covariance, states.lagged.sum(0), ~seen.isnan().any(-1)
    last, next_by_last = _second(mean[:-1], spread[:-1]), lagged + mean[1:].mT @ mean[:-1]
    transition = torch.linalg.solve(last, next_by_last.mT).mT
    # Squared residuals: differences of second moments lose their digits where states stand far from zero.
    turned = transition @ lagged.mT
    around = spread[1:].sum(0) - turned - turned.mT + transition @ spread[:-1].sum(0) @ transition.mT
    surprise = mean[1:] - mean[:-1] @ transition.mT
    move_noise = (around + surprise.mT @ surprise) / (len(mean) - 1)
    y, x, unsure = seen[there], mean[there], spread[there]
    lens = torch.linalg.solve(_second(x, unsure), x.mT @ y).mT
    error = y - x @ lens.mT
    noise = (error.mT @ error + lens @ unsure.sum(0) @ lens.mT) / len(y)
    return LinearStateSpace(
        transition, symmetrise(move_noise), lens, symmetrise(noise), mean[0].clone(), states.covariance[0].clone()
    )


def _second(mean: Tensor, covariance: Tensor) -> Tensor:
    """Σ_t E[x_t x_tᵀ]."""
    return covariance.sum(0) + mean.mT @ mean
