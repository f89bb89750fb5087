"""The covariances of a Kalman filter with many gaps: all blocks of a long chain at once, each after a run-up.

Covariances depend on which entries are missing, not on their values, and a filter forgets where it started. So blocks
of the chain can be filtered side by side if each starts some steps early. Where the run-up of a block does not arrive
at what the block before it ends with, to the last digits, the result is not used.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

RUN_UPS = (64, 256)  # steps that a block starts early; the second where the first did not suffice
LONG = 2000  # steps from which blocks pay
_DIGITS = 32 * np.finfo(np.float64).eps


class GappedChain(NamedTuple):
    """A state-space model in which the entries that a step lacks are written out: rows of C that are zero."""

    transition: np.ndarray
    noise: np.ndarray
    observation: np.ndarray  # (patterns, k, d)
    observation_noise: np.ndarray  # (patterns, k, k), the identity where nothing is observed
    pattern: np.ndarray  # (T,)

    @classmethod
    def of(cls, A: np.ndarray, Q: np.ndarray, C: np.ndarray, R: np.ndarray, here: np.ndarray) -> GappedChain:
        """The chain with these entries there, (T, k)."""
        patterns, pattern = np.unique(here, axis=0, return_inverse=True)
        both = patterns[:, :, None] & patterns[:, None, :]
        noise = np.where(both, R, 0.0) + np.eye(len(C)) * ~patterns[:, :, None]
        return cls(A, Q, np.where(patterns[:, :, None], C, 0.0), noise, pattern.reshape(-1))


class FilterCovariances(NamedTuple):
    """P before and after each observation, the gain K, and the spread S = CPCᵀ + R of the observation."""

    predicted: np.ndarray
    updated: np.ndarray
    gain: np.ndarray
    spread: np.ndarray


def covariances(chain: GappedChain, first: np.ndarray) -> FilterCovariances | None:
    """Those of all steps, from the covariance of the first; None where the filter does not forget quickly enough."""
    try:
        for run_up in RUN_UPS:
            length = 3 * run_up
            if len(chain.pattern) < max(LONG, 2 * length):
                break
            found = _in_blocks(chain, first, run_up, length)
            if found is not None:
                return found
    except np.linalg.LinAlgError:  # an observation without noise of what is known exactly: step by step it is named
        pass
    return None


def _in_blocks(chain: GappedChain, first: np.ndarray, run_up: int, length: int) -> FilterCovariances | None:
    T = len(chain.pattern)
    start = _filtered(chain, first[None], np.arange(length)[None])
    begins = np.arange(length, T, length)
    times = begins[:, None] + np.arange(-run_up, length)  # (blocks, steps)
    guess = np.broadcast_to(start.predicted[0, -1], (len(begins), *first.shape))
    blocks = _filtered(chain, guess, np.minimum(times, T - 1))
    ends = np.concatenate([start.updated[:, -1], blocks.updated[:-1, -1]])
    if not _same(blocks.predicted[:, run_up], chain.transition @ ends @ chain.transition.T + chain.noise):
        return None
    parts = [
        np.concatenate([one[0], many[:, run_up:].reshape(-1, *many.shape[2:])])[:T]
        for one, many in zip(start, blocks, strict=True)
    ]
    return FilterCovariances(*parts)


def _filtered(chain: GappedChain, covariance: np.ndarray, times: np.ndarray) -> FilterCovariances:
    """The covariances (blocks, steps, ...) of blocks at these times, side by side."""
    A, Q, C, R, pattern = chain
    found: list[FilterCovariances] = []
    identity = np.eye(len(A))
    for column in times.T:
        c, noise = C[pattern[column]], R[pattern[column]]
        cross = covariance @ c.swapaxes(-1, -2)
        spread = c @ cross + noise
        gain = np.linalg.solve(spread, cross.swapaxes(-1, -2)).swapaxes(-1, -2)
        rest = identity - gain @ c
        updated = rest @ covariance @ rest.swapaxes(-1, -2) + gain @ noise @ gain.swapaxes(-1, -2)
        updated = 0.5 * (updated + updated.swapaxes(-1, -2))
        found.append(FilterCovariances(covariance, updated, gain, spread))
        covariance = A @ updated @ A.T + Q
        covariance = 0.5 * (covariance + covariance.swapaxes(-1, -2))
    return FilterCovariances(*(np.stack(part, axis=1) for part in zip(*found, strict=True)))


def _same(new: np.ndarray, old: np.ndarray) -> bool:
    scale = np.sqrt(np.abs(old.diagonal(axis1=-2, axis2=-1)))
    return bool((np.abs(new - old) <= _DIGITS * scale[:, :, None] * scale[:, None, :]).all())
