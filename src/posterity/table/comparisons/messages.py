"""Message passing in mixtures: EM and VMP beside scikit-learn."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posterity.families import Dirichlet, Family, NormalWishart
from posterity.graph import MixtureFactor, Model, em, gaussian, vmp
from posterity.table.comparisons._data import furthest, normal

K, D = 3, 2


def _points() -> Tensor:
    """Three clouds that touch."""
    centres = torch.tensor([[0.0, 0.0], [3.0, 1.0], [-1.0, 4.0]], dtype=torch.float64)
    return (normal(K, 50, D, seed=0) + centres[:, None]).reshape(-1, D)


def em_mixture() -> float:
    """Weights, means, covariances and the log-likelihood, after one step and after five."""
    from sklearn.mixture import GaussianMixture

    X = _points()
    weights, means, precisions = np.array([0.2, 0.3, 0.5]), X[[0, 60, 120]].numpy(), np.tile(np.eye(D), (K, 1, 1))
    start = {
        "weights": Dirichlet(1.0 + weights),
        "components": NormalWishart(means, np.ones(K), np.full(K, D + 1.0), precisions),
    }
    model = Model({"weights": None, "components": None}, [MixtureFactor("weights", "components", gaussian(X))])
    pairs: list[tuple[object, object]] = []
    for steps in (1, 5):
        theirs = GaussianMixture(
            K, reg_covar=0, tol=0, max_iter=steps,
            weights_init=weights, means_init=means, precisions_init=precisions,
        )  # fmt: skip
        _quietly(theirs, X)
        ours = em(model, start, steps=steps, tolerance=0.0)
        weight, component = ours.q["weights"], ours.q["components"]
        pairs += [
            (weight.expectation[0].exp(), theirs.weights_),
            (component.family.location, theirs.means_),
            (component.expectation[1], theirs.precisions_),
            (ours.bounds[-2] / len(X), theirs.lower_bound_),  # theirs is from before the last step
        ]
    return furthest(*pairs)


def vmp_mixture() -> float:
    """Natural parameters after one sweep, and at the fixed point."""
    from sklearn.mixture import BayesianGaussianMixture

    X = _points()
    theirs = BayesianGaussianMixture(
        n_components=K, weight_concentration_prior_type="dirichlet_distribution", weight_concentration_prior=0.5,
        mean_precision_prior=0.5, mean_prior=np.zeros(D), degrees_of_freedom_prior=D + 1.0,
        covariance_prior=2.0 * np.eye(D), reg_covar=0, tol=0, max_iter=1, warm_start=True, random_state=0,
    )  # fmt: skip
    prior = {
        "weights": Dirichlet(np.full(K, 0.5)),
        "components": NormalWishart(np.zeros((K, D)), 0.5, D + 1.0, 0.5 * np.eye(D)),
    }
    model = Model(prior, [MixtureFactor("weights", "components", gaussian(X))])
    start = _state(_quietly(theirs, X))
    once = _differences(vmp(model, start, steps=1, tolerance=0.0).q, _state(_quietly(theirs, X)))
    theirs.max_iter = 1000
    rest = _differences(vmp(model, start, tolerance=1e-14).q, _state(_quietly(theirs, X)))
    return furthest(*once, *rest)


def _state(theirs: Any) -> dict[str, Family]:
    """The posterior of a BayesianGaussianMixture."""
    scales = np.linalg.inv(theirs.covariances_ * theirs.degrees_of_freedom_[:, None, None])
    components = NormalWishart(theirs.means_, theirs.mean_precision_, theirs.degrees_of_freedom_, scales)
    return {"weights": Dirichlet(theirs.weight_concentration_), "components": components}


def _differences(ours: Any, theirs: dict[str, Family]) -> list[tuple[Tensor, Tensor]]:
    return [pair for name in theirs for pair in zip(ours[name].natural, theirs[name].natural, strict=True)]


def _quietly(estimator: Any, X: Tensor) -> Any:
    """Fit, without the complaint that too few steps were allowed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return estimator.fit(X.numpy())
