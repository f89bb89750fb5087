"""Long chains of Gaussians: the Kalman filter and smoother as two sweeps of messages, with missing observations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from posterity.algorithms import LinearStateSpace
from posterity.errors import require
from posterity.progress import track

_LONG = 10_000  # steps from which a sweep shows its progress


@dataclass(frozen=True)
class StateBeliefs:
    """What is believed about each state of a chain.

    Attributes:
        mean: (T, d).
        covariance: (T, d, d).
        log_likelihood: Of everything observed.
        lagged: Cov(x_{t+1}, x_t), (T − 1, d, d); from the smoother alone.
    """

    mean: Tensor
    covariance: Tensor
    log_likelihood: float
    lagged: Tensor | None = None


def filter_states(model: LinearStateSpace, observations: Tensor) -> StateBeliefs:
    """The Kalman filter in covariance form, linear in the length of the chain.

    Posterior: a Gaussian for each state, given the observations so far.

    One sweep of exact messages, each an update of the rule with ρ = 1. What the precision form adds, the covariance
    form multiplies, and neither Q nor P₁ is inverted:

        predict:  m ← Am,  P ← APAᵀ + Q
        update:   K = PCᵀ(CPCᵀ + R)⁻¹,  m ← m + K(y − Cm),  P ← (I − KC)P(I − KC)ᵀ + KRKᵀ

    Entries of y that are NaN are missing: their rows of C and R are left out.

    Args:
        model: The state-space model.
        observations: y (T, k), NaN where missing.
    """
    means, covariances, _, total = _forward(model, observations)
    return StateBeliefs(torch.as_tensor(means), torch.as_tensor(covariances), total)


def smooth_states(model: LinearStateSpace, observations: Tensor) -> StateBeliefs:
    """The Kalman (Rauch-Tung-Striebel) smoother, linear in the length of the chain.

    Posterior: a Gaussian for each state, and its covariance with the next, given all observations.

    The filter, then a sweep of messages back; with P⁻ = APAᵀ + Q the filter's prediction of the next state,

        J = PAᵀ(P⁻)⁻¹,   m ← m + J(m' − Am),   P ← P + J(P' − P⁻)Jᵀ,   Cov(x', x) = P'Jᵀ.

    Args:
        model: The state-space model.
        observations: y (T, k), NaN where missing.
    """
    means, covariances, predicted, total = _forward(model, observations)
    transition = model.transition.cpu().numpy()
    lagged = np.empty_like(covariances[1:])
    for t in range(len(means) - 2, -1, -1):
        gain = np.linalg.solve(predicted[t + 1], transition @ covariances[t]).T
        means[t] += gain @ (means[t + 1] - transition @ means[t])
        covariances[t] = _symmetric(covariances[t] + gain @ (covariances[t + 1] - predicted[t + 1]) @ gain.T)
        lagged[t] = covariances[t + 1] @ gain.T
    return StateBeliefs(torch.as_tensor(means), torch.as_tensor(covariances), total, torch.as_tensor(lagged))


def _forward(model: LinearStateSpace, observations: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Filtered means and covariances, predicted covariances, and the log-likelihood."""
    shape = (len(observations), len(model.observation))
    require(tuple(observations.shape) == shape, "observations", f"shape {shape}", tuple(observations.shape))
    seen = observations.cpu().numpy()
    require(not np.isinf(seen).any(), "observations", "numbers, or NaN where missing", "infinity")
    A, Q, C, R = (
        part.cpu().numpy()
        for part in (model.transition, model.transition_noise, model.observation, model.observation_noise)
    )
    mean, covariance = model.initial_mean.cpu().numpy(), model.initial_covariance.cpu().numpy()
    d, total = len(mean), 0.0
    means, covariances, predicted = np.empty((len(seen), d)), np.empty((len(seen), d, d)), np.empty((len(seen), d, d))
    here = ~np.isnan(seen)
    complete = here.all(-1)
    show = None if len(seen) >= _LONG else False
    for t in track(range(len(seen)), "filtering", total=len(seen), show=show):
        if t > 0:
            mean, covariance = A @ mean, _symmetric(A @ covariance @ A.T + Q)
        predicted[t] = covariance
        rows = here[t]
        if complete[t]:
            mean, covariance, part = _update(mean, covariance, seen[t], C, R)
            total += part
        elif rows.any():
            mean, covariance, part = _update(mean, covariance, seen[t, rows], C[rows], R[np.ix_(rows, rows)])
            total += part
        means[t], covariances[t] = mean, covariance
    return means, covariances, predicted, total


def _update(
    mean: np.ndarray, covariance: np.ndarray, seen: np.ndarray, C: np.ndarray, R: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """m and P after an observation, in Joseph's form, and the observation's log-likelihood."""
    surprise, cross = seen - C @ mean, covariance @ C.T
    spread = C @ cross + R
    gain = np.linalg.solve(spread, cross.T).T
    rest = np.eye(len(mean)) - gain @ C
    _, log_det = np.linalg.slogdet(spread)
    log_likelihood = -0.5 * (surprise @ np.linalg.solve(spread, surprise) + log_det + len(seen) * np.log(2.0 * np.pi))
    return mean + gain @ surprise, _symmetric(rest @ covariance @ rest.T + gain @ R @ gain.T), float(log_likelihood)


def _symmetric(matrix: np.ndarray) -> np.ndarray:
    return 0.5 * (matrix + matrix.T)
