"""Chains with hidden states: EM beside the sum over all paths, long filters beside statsmodels."""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posterity.families import Dirichlet, NormalWishart
from posterity.graph import Chain, Model, em, filter_states, gaussian, smooth_states
from posterity.table.comparisons._data import furthest, normal
from posterity.table.comparisons.kalman import example


def em_chain() -> float:
    """One step of Baum-Welch: first states, moves, means and covariances from the sum over all 2⁹ paths."""
    K, T = 2, 9
    x = normal(T, 1, seed=0) + torch.tensor([0.0, 0, 0, 0, 2, 2, 2, 2, 0], dtype=torch.float64)[:, None]
    initial = torch.tensor([0.6, 0.4], dtype=torch.float64)
    moves = torch.tensor([[0.7, 0.3], [0.2, 0.8]], dtype=torch.float64)
    means = torch.tensor([[0.0], [1.5]], dtype=torch.float64)
    start = {
        "initial": Dirichlet(1.0 + initial),
        "moves": Dirichlet(1.0 + moves),
        "components": NormalWishart(means, 1.0, 2.0, [[1.0]]),
    }
    model = Model(dict.fromkeys(start, None), [Chain("initial", "moves", "components", gaussian(x))])
    q = em(model, start, steps=1, tolerance=0.0).q

    paths = torch.tensor(list(itertools.product(range(K), repeat=T)))
    density = torch.distributions.Normal(means[:, 0], 1.0).log_prob(x)  # (T, K)
    steps = moves[paths[:, :-1], paths[:, 1:]].log().sum(-1) + density[torch.arange(T), paths].sum(-1)
    chance = (initial[paths[:, 0]].log() + steps).softmax(0)
    here = torch.nn.functional.one_hot(paths, K).double()
    states = torch.einsum("p,ptk->tk", chance, here)
    pairs = torch.einsum("p,ptj,ptk->jk", chance, here[:, :-1], here[:, 1:])
    centre = states.mT @ x / states.sum(0)[:, None]
    spread = (states * (x - centre[:, 0]) ** 2).sum(0) / states.sum(0)
    return furthest(
        (q["initial"].expectation[0].exp(), states[0]),
        (q["moves"].expectation[0].exp(), pairs / pairs.sum(-1, keepdim=True)),
        (q["components"].family.location, centre),
        (1.0 / q["components"].expectation[1][:, 0, 0], spread),
    )


def _observations() -> Tensor:
    """Some rows missing, some entries."""
    seen = normal(40, 2, seed=0)
    seen[5], seen[17:20], seen[30, 0], seen[31, 1] = torch.nan, torch.nan, torch.nan, torch.nan
    return seen


@lru_cache(maxsize=1)
def _statsmodels() -> Any:
    from statsmodels.tsa.statespace.kalman_smoother import KalmanSmoother

    model = example()
    theirs = KalmanSmoother(k_endog=2, k_states=3, selection=np.eye(3))
    theirs["transition"], theirs["state_cov"] = model.transition.numpy(), model.transition_noise.numpy()
    theirs["design"], theirs["obs_cov"] = model.observation.numpy(), model.observation_noise.numpy()
    theirs.initialize_known(model.initial_mean.numpy(), model.initial_covariance.numpy())
    theirs.bind(_observations().numpy())
    return theirs.smooth()


def filter_missing() -> float:
    """Filtered means and covariances, and the log-likelihood."""
    theirs, ours = _statsmodels(), filter_states(example(), _observations())
    covariances = theirs.filtered_state_cov.transpose(2, 0, 1)
    pairs = (ours.mean, theirs.filtered_state.T), (ours.covariance, covariances)
    return furthest(*pairs, (ours.log_likelihood, theirs.llf_obs.sum()))


def smoother_missing() -> float:
    """Smoothed means and covariances."""
    theirs, ours = _statsmodels(), smooth_states(example(), _observations())
    covariances = theirs.smoothed_state_cov.transpose(2, 0, 1)
    return furthest((ours.mean, theirs.smoothed_state.T), (ours.covariance, covariances))
