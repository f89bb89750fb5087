"""Posterity: machines that keep learning. The public names, imported when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posterity import (
        adaptation,
        adapters,
        algorithms,
        app,
        curvature,
        exploration,
        families,
        features,
        gradients,
        graph,
        learning,
        likelihoods,
        memory,
        merging,
        metrics,
        models,
        noise,
        optim,
        plots,
        posterior,
        prediction,
        runs,
        table,
    )
    from posterity.adaptation import Stream, adapt, measure
    from posterity.app import serve, show_rule, write_html
    from posterity.distributed import sharded
    from posterity.errors import PosterityError
    from posterity.exploration import ActiveLearner, ThompsonSampler, acquire
    from posterity.learning import (
        Run,
        bayes_by_backprop,
        dropout,
        ensemble,
        fit,
        insert_dropout,
        laplace,
        log_marginal_likelihood,
        swag,
    )
    from posterity.memory import MemoryTracker, dual, memory_map
    from posterity.merging import merge
    from posterity.posterior import Posterior
    from posterity.prediction import (
        ConformalIntervals,
        ConformalSets,
        Prediction,
        PredictiveModule,
        TemperatureScaling,
        predict,
    )
    from posterity.rule import BayesianLearningRule
    from posterity.texts import tokenised

__version__ = "0.2.0"

_WHERE = {
    "ActiveLearner": "exploration",
    "BayesianLearningRule": "rule",
    "ConformalIntervals": "prediction",
    "ConformalSets": "prediction",
    "MemoryTracker": "memory",
    "Posterior": "posterior",
    "PosterityError": "errors",
    "Prediction": "prediction",
    "PredictiveModule": "prediction",
    "Run": "learning",
    "TemperatureScaling": "prediction",
    "ThompsonSampler": "exploration",
    "acquire": "exploration",
    "Stream": "adaptation",
    "adapt": "adaptation",
    "measure": "adaptation",
    "bayes_by_backprop": "learning",
    "dropout": "learning",
    "dual": "memory",
    "ensemble": "learning",
    "fit": "learning",
    "insert_dropout": "learning",
    "laplace": "learning",
    "log_marginal_likelihood": "learning",
    "memory_map": "memory",
    "merge": "merging",
    "predict": "prediction",
    "serve": "app",
    "sharded": "distributed",
    "show_rule": "app",
    "swag": "learning",
    "tokenised": "texts",
    "write_html": "app",
}

__all__ = [
    "ActiveLearner",
    "BayesianLearningRule",
    "ConformalIntervals",
    "ConformalSets",
    "MemoryTracker",
    "Posterior",
    "PosterityError",
    "Prediction",
    "PredictiveModule",
    "Run",
    "Stream",
    "TemperatureScaling",
    "ThompsonSampler",
    "acquire",
    "adapt",
    "adaptation",
    "adapters",
    "algorithms",
    "app",
    "bayes_by_backprop",
    "curvature",
    "dropout",
    "dual",
    "ensemble",
    "exploration",
    "families",
    "features",
    "fit",
    "gradients",
    "graph",
    "insert_dropout",
    "laplace",
    "learning",
    "likelihoods",
    "log_marginal_likelihood",
    "measure",
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
    "prediction",
    "runs",
    "serve",
    "sharded",
    "show_rule",
    "swag",
    "table",
    "tokenised",
    "write_html",
]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(f"posterity.{_WHERE[name]}"), name)
    if name in __all__:
        return importlib.import_module(f"posterity.{name}")
    raise AttributeError(f"module 'posterity' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Verbs and classes. The packages beside them, such as `posterity.optim`, are found by their paths."""
    return sorted([*_WHERE, "__version__"])
