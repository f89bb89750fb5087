"""Long chains of Gaussians: the Kalman filter and smoother as two sweeps of messages, with missing observations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from posterity.algorithms import LinearStateSpace
from posterity.batches import one_tensor
from posterity.errors import expected, require
from posterity.graph._blocks import FilterCovariances, GappedChain, covariances
from posterity.progress import track

_KNOWN = 1e-14  # variance of a direction, relative to the states' own, below which it is known exactly
_WORTHWHILE = 8  # steps in a stretch from which its end is looked for
_OFTEN = 32  # mean length of stretches below which all blocks of a chain are filtered side by side
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

    Entries of y that are NaN are missing: their rows of C and R are left out. P does not depend on y; once it is
    constant to the last digits, the rest of an unbroken stretch has its gain, and only means are computed.

    Args:
        model: The state-space model.
        observations: y (T, k), NaN where missing.
    """
    forward = _forward(model, observations)
    return StateBeliefs(torch.as_tensor(forward.means), torch.as_tensor(forward.covariances), forward.log_likelihood)


def smooth_states(model: LinearStateSpace, observations: Tensor) -> StateBeliefs:
    """The Kalman (Rauch-Tung-Striebel) smoother, linear in the length of the chain.

    Posterior: a Gaussian for each state, and its covariance with the next, given all observations.

    The filter, then a sweep of messages back; with P⁻ = APAᵀ + Q the filter's prediction of the next state,

        J = PAᵀ(P⁻)⁻¹,   m ← m + J(m' − Am),   P ← P + J(P' − P⁻)Jᵀ,   Cov(x', x) = P'Jᵀ.

    Where states are known exactly, as those of an autoregression observed without noise, the inverse is over the rest.

    Args:
        model: The state-space model.
        observations: y (T, k), NaN where missing.
    """
    forward, transition = _forward(model, observations), model.transition.cpu().numpy()
    means, covariances, predicted, steady = forward.means, forward.covariances, forward.predicted, forward.steady
    lagged = np.empty_like(covariances[1:])
    gain, resting = np.empty(0), False
    for t in range(len(means) - 2, -1, -1):
        repeated = t + 2 < len(means) and steady[t + 1] and steady[t + 2]  # the gain is that of the step before
        if not repeated:
            gain = _gain(predicted[t + 1], transition @ covariances[t])
        means[t] += gain @ (means[t + 1] - transition @ means[t])
        if repeated and resting:
            covariances[t], lagged[t] = covariances[t + 1], lagged[t + 1]
            continue
        lagged[t] = covariances[t + 1] @ gain.T
        covariances[t] = _symmetric(covariances[t] + gain @ (covariances[t + 1] - predicted[t + 1]) @ gain.T)
        resting = repeated and _same(covariances[t], covariances[t + 1])
    total = forward.log_likelihood
    return StateBeliefs(torch.as_tensor(means), torch.as_tensor(covariances), total, torch.as_tensor(lagged))


@dataclass
class _Forward:
    """The result of the filter: filtered and predicted beliefs, and where covariances are constant."""

    means: np.ndarray
    covariances: np.ndarray
    predicted: np.ndarray
    steady: np.ndarray
    log_likelihood: float


def _forward(model: LinearStateSpace, observations: Tensor) -> _Forward:
    """The filter; step by step until covariances are constant, then a stretch at a time."""
    observations = one_tensor(observations)
    shape = (len(observations), len(model.observation))
    require(tuple(observations.shape) == shape, "observations", f"shape {shape}", tuple(observations.shape))
    seen = observations.cpu().numpy()
    require(not np.isinf(seen).any(), "observations", "numbers, or NaN where missing", "infinity")
    A, Q, C, R = (
        part.cpu().numpy()
        for part in (model.transition, model.transition_noise, model.observation, model.observation_noise)
    )
    mean, covariance = model.initial_mean.cpu().numpy(), model.initial_covariance.cpu().numpy()
    T, d = len(seen), len(mean)
    out = _Forward(np.empty((T, d)), np.empty((T, d, d)), np.empty((T, d, d)), np.zeros(T, dtype=bool), 0.0)
    here = ~np.isnan(seen)
    if (~here).any(-1).sum() * _OFTEN > T:
        chain = GappedChain.of(A, Q, C, R, here)
        found = covariances(chain, covariance)
        if found is not None:
            return _means(chain, found, mean, np.where(here, seen, 0.0), int(here.sum()))
    parts, which = _parts(here, C, R)
    complete = np.array([len(part.rows) == len(C) for part in parts], dtype=bool)[which].tolist()
    gaps = np.append(np.flatnonzero(~np.array(complete, dtype=bool)), T)  # where unbroken stretches end
    patterns, forth, done = which.tolist(), A.T.copy(), 0
    for t in track(range(T), "filtering", total=T, show=None if T >= _LONG else False):
        if t < done:
            continue
        if t > 0:
            mean, covariance = A @ mean, _symmetric(A @ covariance @ forth + Q)
        out.predicted[t] = covariance
        if t > 1 and complete[t - 1] and complete[t]:
            end = int(gaps[np.searchsorted(gaps, t)])
            if end - t >= _WORTHWHILE and _same(covariance, out.predicted[t - 1]):
                out.log_likelihood += _stretch(out, seen, t, end, A, C, R)
                mean, covariance, done = out.means[end - 1], out.covariances[end - 1], end
                continue
        part = parts[patterns[t]]
        if len(part.rows):
            mean, covariance = part.update(mean, covariance, seen[t])
        out.means[t], out.covariances[t] = mean, covariance
    out.log_likelihood += sum(part.log_likelihood() for part in parts)
    return out


def _means(chain: GappedChain, found: FilterCovariances, mean: np.ndarray, seen: np.ndarray, count: int) -> _Forward:
    """The filter where all covariances are known: m_t = (I − KC)A m_{t−1} + K y_t, and the likelihood at once."""
    C, means = chain.observation[chain.pattern], np.empty((len(seen), len(mean)))
    steps = chain.transition - found.gain @ (C @ chain.transition)
    pulls = (found.gain @ seen[..., None])[..., 0]
    surprises = np.empty_like(seen)
    surprises[0] = seen[0] - C[0] @ mean
    means[0] = mean = mean + found.gain[0] @ surprises[0]
    for t, (step, pull) in enumerate(zip(steps[1:], pulls[1:], strict=True), 1):
        means[t] = mean = step @ mean + pull
    surprises[1:] = seen[1:] - (C[1:] @ (means[:-1] @ chain.transition.T)[..., None])[..., 0]
    _, log_dets = np.linalg.slogdet(found.spread)
    squares = (surprises * np.linalg.solve(found.spread, surprises[..., None])[..., 0]).sum()
    total = float(-0.5 * (squares + log_dets.sum() + count * np.log(2.0 * np.pi)))
    return _Forward(means, found.updated, found.predicted, np.zeros(len(seen), dtype=bool), total)


class _Part:
    """Observations with the same entries missing: what they add to a belief, and to the log-likelihood in the end."""

    def __init__(self, rows: np.ndarray, C: np.ndarray, R: np.ndarray) -> None:
        self.rows, self.C, self.R = rows, C[rows], R[np.ix_(rows, rows)]
        self._back, self._one = self.C.T.copy(), np.eye(C.shape[1])
        self._surprises: list[np.ndarray] = []
        self._spreads: list[np.ndarray] = []

    def update(self, mean: np.ndarray, covariance: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """m and P after an observation, in Joseph's form."""
        surprise, cross = seen[self.rows] - self.C @ mean, covariance @ self._back
        spread = self.C @ cross + self.R
        gain = cross @ _inverse(spread)
        rest = self._one - gain @ self.C
        self._surprises.append(surprise)
        self._spreads.append(spread)
        return mean + gain @ surprise, _symmetric(rest @ covariance @ rest.T + gain @ self.R @ gain.T)

    def log_likelihood(self) -> float:
        """Of all observations that `update` was given, computed at once."""
        if not self._spreads:
            return 0.0
        spreads, surprises = np.stack(self._spreads), np.stack(self._surprises)
        _, log_dets = np.linalg.slogdet(spreads)
        squares = (surprises * np.linalg.solve(spreads, surprises[..., None])[..., 0]).sum()
        return float(-0.5 * (squares + log_dets.sum() + surprises.size * np.log(2.0 * np.pi)))


def _parts(here: np.ndarray, C: np.ndarray, R: np.ndarray) -> tuple[list[_Part], np.ndarray]:
    """The patterns of entries that are there, and which of them each step has."""
    patterns, which = np.unique(here, axis=0, return_inverse=True)
    return [_Part(np.flatnonzero(pattern), C, R) for pattern in patterns], which.reshape(-1)


def _inverse(spread: np.ndarray) -> np.ndarray:
    """S⁻¹; of the small matrices that most models have, by formula, since a call of LAPACK takes longer."""
    if len(spread) > 2:
        try:
            return np.linalg.inv(spread)
        except np.linalg.LinAlgError:
            raise expected("observation", "noise, or a state that is not known exactly", "neither") from None
    a, b, c, d = spread.ravel().tolist() if len(spread) == 2 else (spread.item(), 0.0, 0.0, 1.0)
    determinant = a * d - b * c
    require(determinant != 0.0, "observation", "noise, or a state that is not known exactly", "neither")
    return np.array([[d, -b], [-c, a]])[: len(spread), : len(spread)] / determinant


def _stretch(
    out: _Forward, seen: np.ndarray, start: int, end: int, A: np.ndarray, C: np.ndarray, R: np.ndarray
) -> float:
    """Fill in steps start .. end − 1, which all have the covariances of the step before; their log-likelihood.

    m_t = (I − KC)A m_{t−1} + K y_t, a recursion in means alone.
    """
    predicted, part = out.predicted[start - 1], slice(start, end)
    out.predicted[part], out.covariances[part], out.steady[part] = predicted, out.covariances[start - 1], True
    spread = C @ predicted @ C.T + R
    gain = np.linalg.solve(spread, C @ predicted).T
    step, pulls, mean = A - gain @ C @ A, seen[part] @ gain.T, out.means[start - 1]
    for i, pull in enumerate(pulls):
        mean = step @ mean + pull
        out.means[start + i] = mean
    surprise = seen[part] - out.means[start - 1 : end - 1] @ (C @ A).T
    _, log_det = np.linalg.slogdet(spread)
    squares = (surprise * np.linalg.solve(spread, surprise.T).T).sum()
    return float(-0.5 * (squares + len(surprise) * (log_det + len(C) * np.log(2.0 * np.pi))))


def _same(new: np.ndarray, old: np.ndarray) -> bool:
    """Whether a covariance is constant, to the last digits of each pair of states in their own units."""
    scale = np.sqrt(np.abs(new.diagonal()))
    return bool((np.abs(new - old) <= 4 * np.finfo(np.float64).eps * np.outer(scale, scale)).all())


def _gain(predicted: np.ndarray, cross: np.ndarray) -> np.ndarray:
    """J = PAᵀ(P⁻)⁻¹ from P⁻ and AP, over the directions that P⁻ leaves open: states may be known exactly."""
    scale = np.sqrt(np.abs(predicted.diagonal()))
    scale[scale == 0.0] = 1.0
    values, vectors = np.linalg.eigh(predicted / np.outer(scale, scale))
    if values[0] > _KNOWN:
        return np.linalg.solve(predicted, cross).T
    left = values > _KNOWN
    turned = vectors[:, left] / scale[:, None]
    return cross.T @ (turned / values[left]) @ turned.T


def _symmetric(matrix: np.ndarray) -> np.ndarray:
    return 0.5 * (matrix + matrix.T)
