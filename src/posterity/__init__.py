"""Posterity: machines that keep learning. The public names, imported when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posterity import (
        adaptation,
        algorithms,
        curvature,
        families,
        gradients,
        graph,
        likelihoods,
        memory,
        merging,
        metrics,
        models,
        noise,
        optim,
        plots,
        posterior,
        table,
    )
    from posterity.adaptation import adapt
    from posterity.errors import PosterityError
    from posterity.learning import (
        bayes_by_backprop,
        dropout,
        ensemble,
        fit,
        laplace,
        log_marginal_likelihood,
        swag,
    )
    from posterity.memory import MemoryTracker, dual, memory_map
    from posterity.merging import merge
    from posterity.posterior import Posterior
    from posterity.prediction import PredictiveModule, predict
    from posterity.rule import BayesianLearningRule

__version__ = "0.1.0"

_WHERE = {
    "BayesianLearningRule": "rule",
    "MemoryTracker": "memory",
    "Posterior": "posterior",
    "PosterityError": "errors",
    "PredictiveModule": "prediction",
    "adapt": "adaptation",
    "bayes_by_backprop": "learning",
    "dropout": "learning",
    "dual": "memory",
    "ensemble": "learning",
    "fit": "learning",
    "laplace": "learning",
    "log_marginal_likelihood": "learning",
    "memory_map": "memory",
    "merge": "merging",
    "predict": "prediction",
    "swag": "learning",
}

__all__ = [
    "BayesianLearningRule",
    "MemoryTracker",
    "Posterior",
    "PosterityError",
    "PredictiveModule",
    "adapt",
    "adaptation",
    "algorithms",
    "bayes_by_backprop",
    "curvature",
    "dropout",
    "dual",
    "ensemble",
    "families",
    "fit",
    "gradients",
    "graph",
    "laplace",
    "likelihoods",
    "log_marginal_likelihood",
    "memory",
    "memory_map",
    "merge",
    "merging",
    "metrics",
    "models",
    "noise",
    "optim",
    "plots",
    "posterior",
    "predict",
    "swag",
    "table",
]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(f"posterity.{_WHERE[name]}"), name)
    if name in __all__:
        return importlib.import_module(f"posterity.{name}")
    raise AttributeError(f"module 'posterity' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
