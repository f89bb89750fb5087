"""Posterity: machines that keep learning. The public names, imported when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posterity import curvature, families, gradients, likelihoods, metrics, noise, optim, plots
    from posterity.errors import PosterityError
    from posterity.learning import bayes_by_backprop, dropout, ensemble, fit, laplace, swag
    from posterity.posterior import Posterior
    from posterity.prediction import PredictiveModule, predict
    from posterity.rule import BayesianLearningRule

__version__ = "0.1.0"

_PACKAGES = ("curvature", "families", "gradients", "likelihoods", "metrics", "noise", "optim", "plots")
_WHERE = {
    "BayesianLearningRule": "rule",
    "Posterior": "posterior",
    "PosterityError": "errors",
    "PredictiveModule": "prediction",
    "bayes_by_backprop": "learning",
    "dropout": "learning",
    "ensemble": "learning",
    "fit": "learning",
    "laplace": "learning",
    "predict": "prediction",
    "swag": "learning",
}

__all__ = [
    "BayesianLearningRule",
    "Posterior",
    "PosterityError",
    "PredictiveModule",
    "bayes_by_backprop",
    "curvature",
    "dropout",
    "ensemble",
    "families",
    "fit",
    "gradients",
    "laplace",
    "likelihoods",
    "metrics",
    "noise",
    "optim",
    "plots",
    "predict",
    "swag",
]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"posterity.{name}")
    if name in _WHERE:
        return getattr(importlib.import_module(f"posterity.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'posterity' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
