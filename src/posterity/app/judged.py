"""How good predictions are, for people: figures with intervals, a confusion matrix, and every class by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from posterity import metrics
from posterity.app.document import shown

Array = np.ndarray[Any, Any]
LEVEL = 0.9  # probability of the intervals
_Z = 1.6449  # of a normal, for that level
_DRAWS = 400  # resamplings behind an interval
INFLATED = "calibration error"
CLASSES = 12  # classes up to which a confusion matrix can be read


def wilson(hits: Array, counts: Array) -> tuple[Array, Array]:
    """Wilson's interval of a share: lower and upper ends.

        (p̂ + z²/2n ± z √(p̂(1 − p̂)/n + z²/4n²)) / (1 + z²/n)

    Examples:
        >>> low, high = wilson(np.array([9.0]), np.array([10.0]))
        >>> round(float(low[0]), 3), round(float(high[0]), 3)
        (0.652, 0.977)
    """
    n = np.maximum(counts, 1e-9)
    p = hits / n
    middle = p + _Z**2 / (2 * n)
    reach = _Z * np.sqrt(p * (1 - p) / n + _Z**2 / (4 * n**2))
    return (middle - reach) / (1 + _Z**2 / n), (middle + reach) / (1 + _Z**2 / n)


def class_figures(probs: Array, targets: Array) -> pd.DataFrame:
    """Figures of a classifier, each with its interval."""
    scores: Mapping[str, tuple[Callable[..., float], str]] = {
        "accuracy": (metrics.accuracy, "share of rows whose likeliest class is right"),
        "balanced accuracy": (metrics.balanced_accuracy, "the same, averaged over classes: rare ones count as much"),
        "log loss": (metrics.nll, "mean −log probability of the right class; lower is better"),
        "Brier score": (metrics.brier, "mean squared error of the probabilities; lower is better"),
        INFLATED: (metrics.ece, "mean distance of confidence from accuracy, 15 bins; few rows inflate it"),
    }
    return _figures(scores, len(targets), lambda score, rows: score(probs[rows], targets[rows]))


def amount_figures(mean: Array, std: Array, targets: Array) -> pd.DataFrame:
    """Figures of a regression, each with its interval."""
    z = np.abs(targets - mean) / std
    scores: Mapping[str, tuple[Callable[..., float], str]] = {
        "RMSE": (lambda rows: np.sqrt(np.mean((targets - mean)[rows] ** 2)), "root of the mean squared error"),
        "mean absolute error": (lambda rows: np.mean(np.abs(targets - mean)[rows]), "in the units of the target"),
        "coverage of 90 % intervals": (lambda rows: np.mean(z[rows] <= _Z), "0.9 if intervals are calibrated"),
        "CRPS": (
            lambda rows: metrics.crps_gaussian(mean[rows], std[rows], targets[rows]),
            "error of the whole predictive distribution; lower is better",
        ),
    }
    return _figures(scores, len(targets), lambda score, rows: float(score(rows)))


def _figures(
    scores: Mapping[str, tuple[Callable[..., float], str]], n: int, apply: Callable[[Any, Array], float]
) -> pd.DataFrame:
    """A row for each figure: its value, and the middle 90 % of its values on rows drawn again with replacement.

    Rows that are drawn again inflate the calibration error once more. Its interval [l, h] is therefore turned around
    the value v, [2v − h, 2v − l].
    """
    generator = np.random.default_rng(0)
    drawn = [generator.integers(0, n, n) for _ in range(_DRAWS)]
    rows = []
    for name, (score, meaning) in scores.items():
        value = apply(score, np.arange(n))
        low, high = np.nanquantile([apply(score, some) for some in drawn], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        if name == INFLATED:
            low, high = max(0.0, 2 * value - high), max(0.0, 2 * value - low)
        rows.append((shown(value), f"{shown(float(low))} to {shown(float(high))}", meaning))
    return pd.DataFrame(rows, columns=["value", "90 % interval", "meaning"], index=list(scores))


def confusion(probs: Array, targets: Array, names: Sequence[str]) -> pd.DataFrame:
    """Counts of rows: a row for each true class, a column for each predicted one."""
    said = probs.argmax(-1)
    counts = np.zeros((len(names), len(names)), dtype=int)
    np.add.at(counts, (targets, said), 1)
    return pd.DataFrame(counts, index=list(names), columns=list(names))


def confused(probs: Array, targets: Array, names: Sequence[str], most: int = 10) -> pd.DataFrame:
    """The pairs of classes that are taken for each other most often, where there are too many for a matrix."""
    counts = confusion(probs, targets, names).to_numpy()
    pairs = sorted(((counts[i, j], i, j) for i, j in np.argwhere(counts > 0) if i != j), reverse=True)[:most]
    rows = [(names[i], names[j], int(count), shown(float(count / counts[i].sum()))) for count, i, j in pairs]
    return pd.DataFrame(rows, columns=["is", "said", "rows", "share of the class"])


def by_class(probs: Array, targets: Array, names: Sequence[str]) -> pd.DataFrame:
    """Recall and precision of every class, with their intervals."""
    counts = confusion(probs, targets, names).to_numpy().astype(float)
    right, there, said = np.diag(counts), counts.sum(1), counts.sum(0)
    table = pd.DataFrame({"rows": there.astype(int)}, index=list(names))
    for title, total in (("recall", there), ("precision", said)):
        low, high = wilson(right, total)
        table[title] = [shown(float(r / n)) if n else "" for r, n in zip(right, total)]
        table[f"90 % interval of {title}"] = [
            f"{shown(float(a))} to {shown(float(b))}" if n else "" for a, b, n in zip(low, high, total)
        ]
    return table
