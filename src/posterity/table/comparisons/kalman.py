"""The Kalman filter and smoother beside filterpy."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from posterity import algorithms
from posterity.algorithms import LinearStateSpace
from posterity.table.comparisons._data import furthest, normal

T = 25


def example() -> LinearStateSpace:
    """Three states, two observed."""
    tensors = (
        [[1.0, 0.3, 0.0], [-0.2, 0.9, 0.1], [0.0, 0.1, 0.7]],
        [[0.1, 0.02, 0.0], [0.02, 0.05, 0.01], [0.0, 0.01, 0.2]],
        [[1.0, 0.5, 0.0], [0.0, 0.3, 1.0]],
        [[0.3, 0.1], [0.1, 0.4]],
        [0.5, -1.0, 0.2],
        [[1.0, 0.2, 0.0], [0.2, 1.5, 0.0], [0.0, 0.0, 0.8]],
    )
    return LinearStateSpace(*(torch.tensor(t, dtype=torch.float64) for t in tensors))


@lru_cache(maxsize=1)
def _filterpy() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float]:
    """Filtered and smoothed means and covariances, and the log-likelihood."""
    from filterpy.kalman import KalmanFilter

    model, total = example(), 0.0
    theirs = KalmanFilter(dim_x=3, dim_z=2)
    theirs.x, theirs.P = model.initial_mean.numpy()[:, None].copy(), model.initial_covariance.numpy().copy()
    theirs.F, theirs.Q = model.transition.numpy(), model.transition_noise.numpy()
    theirs.H, theirs.R = model.observation.numpy(), model.observation_noise.numpy()
    means, covariances = [], []
    for t, seen in enumerate(_observations().numpy()):
        if t > 0:
            theirs.predict()
        theirs.update(seen[:, None])
        total += float(theirs.log_likelihood)
        means.append(theirs.x.copy())
        covariances.append(theirs.P.copy())
    smooth, spread, _, _ = theirs.rts_smoother(np.array(means), np.array(covariances))
    return np.array(means)[..., 0], np.array(covariances), smooth[..., 0], spread, total


def _observations() -> torch.Tensor:
    return normal(T, 2, seed=0)


def kalman_filter() -> float:
    """Filtered means and covariances."""
    means, covariances, _, _, _ = _filterpy()
    q = algorithms.kalman_filter(example(), _observations()).states
    return furthest((q.mean, means), (q.covariance, covariances))


def kalman_smoother() -> float:
    """Smoothed means and covariances."""
    _, _, means, covariances, _ = _filterpy()
    q = algorithms.kalman_smoother(example(), _observations()).states
    return furthest((q.mean, means), (q.covariance, covariances))


def kalman_likelihood() -> float:
    """The log-likelihood, from the links of the filter and from the whole chain."""
    *_, total = _filterpy()
    ours = [
        f(example(), _observations()).log_likelihood for f in (algorithms.kalman_filter, algorithms.kalman_smoother)
    ]
    return furthest(*((value, total) for value in ours)) / abs(total)
