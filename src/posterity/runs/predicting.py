"""Predictions of a run as a table, and how good they are where the truth is known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from posterity import metrics
from posterity.errors import expected, require
from posterity.posterior import Posterior
from posterity.prediction import Prediction, predict
from posterity.runs._folder import RunFolder
from posterity.runs.intervals import bounds
from posterity.runs.preprocessing import Examples, Preprocessing
from posterity.runs.readers import FILE, Rows
from posterity.runs.targets import Classes, Target

LEVEL = 0.9  # probability that an interval is meant to hold the target
SAMPLES = 64
DECISION, ABSTAIN = "decision", "abstain"


def predict_run(
    run: RunFolder,
    rows: Rows,
    *,
    samples: int = SAMPLES,
    level: float = LEVEL,
    threshold: float | None = None,
) -> tuple[pd.DataFrame, dict[str, float], list[str]]:
    """Predict new rows.

    Args:
        run: The run.
        rows: The rows; their target, where they have one, is only compared with.
        samples: Draws of the weights.
        level: Probability of the intervals of amounts and counts.
        threshold: Abstain for rows whose confidence is lower (classes) or whose standard deviation is larger.

    Returns:
        The table, figures where the truth is known, and notes about unusual rows. Its ids are those of the column that
        names the rows, or else positions; pictures come with the names of their files.
    """
    require(0 < level < 1, "level", "a probability in (0, 1)", level)
    notes: list[str] = list(rows.remarks)
    config, target = run.config, run.preprocessing.target
    inputs = run.preprocessing.inputs(rows, notes)
    answer = predict(run.model(), run.posterior, inputs, samples, method=config["prediction"], seed=config["seed"])
    named = run.dataset.id_column in rows.table
    ids = rows.table[run.dataset.id_column].to_numpy() if named else np.arange(len(rows))
    table = prediction_table(answer, target, ids, level, run.record.widths)
    figures: dict[str, float] = {}
    known = _known(rows, target)
    given = rows.table.get(target.name, pd.Series(None, index=rows.table.index, dtype=object))
    strange = int((given.notna() & ~known).sum())
    if strange:
        notes.append(f"{target.name}: {strange} rows have {target.unknown}; they are not compared with")
    if known.any():
        taken = target.name in table or target.name == DECISION
        table.insert(1, "given" if taken else target.name, given.to_numpy())
        truth = target.encode(given[known].reset_index(drop=True))
        figures = scores(_rows(answer, torch.from_numpy(known)), target, truth, level, run.record.widths)
    if rows.block is not None and FILE in rows.table and FILE not in table:
        table.insert(1, FILE, rows.table[FILE].to_numpy())
    if threshold is not None:
        table[DECISION] = _decided(table, target, threshold)
    return table, figures, notes


def prediction_table(
    p: Prediction,
    target: Target,
    ids: np.ndarray[Any, Any],
    level: float = LEVEL,
    widths: Sequence[float] | None = None,
) -> pd.DataFrame:
    """Predictions in the terms of the data, one row each.

    Classes: prediction, confidence, a probability for each class; entropy in nats, split into aleatoric (what the
    model takes for chance) and epistemic (what more data would remove). Amounts and counts: mean, std, lower and
    upper bound (with the widths of `intervals.widths`); epistemic and aleatoric are the two parts of the standard
    deviation.
    """
    table = pd.DataFrame({"id": ids})
    if isinstance(target, Classes):
        probs = p.probs.double().numpy()
        table["prediction"] = target.decode(probs.argmax(1))
        table["confidence"] = probs.max(1)
        names = {f"p({name})": probs[:, k] for k, name in enumerate(target.names)}
        table = pd.concat([table, pd.DataFrame(names)], axis=1)
        parts = {"entropy": p.entropy, "aleatoric": p.aleatoric, "epistemic": p.mutual_information}
        return table.assign(**{name: value.double().numpy() for name, value in parts.items()})
    scale = getattr(target, "scale", 1.0)
    low, high = bounds(p, level, widths)
    return table.assign(
        mean=target.decode(p.mean[:, 0].numpy()),
        std=scale * p.std[:, 0].double().numpy(),
        lower=target.decode(low[:, 0].numpy()),
        upper=target.decode(high[:, 0].numpy()),
        epistemic=scale * p.epistemic_std[:, 0].double().numpy(),
        aleatoric=scale * p.noise_std[:, 0].double().numpy(),
    )


def row_nll(p: Prediction, target: Target, truth: Tensor) -> np.ndarray[Any, Any]:
    """Negative log-likelihood of each row, in the units of the data."""
    return -p.log_prob(truth).reshape(-1).double().numpy() + math.log(getattr(target, "scale", 1.0))


def scores(
    p: Prediction, target: Target, truth: Tensor, level: float = LEVEL, widths: Sequence[float] | None = None
) -> dict[str, float]:
    """Figures of merit, in the units of the data."""
    if isinstance(target, Classes):
        wrong = (p.probs.argmax(-1) != truth).double()
        return {
            "accuracy": metrics.accuracy(p.probs, truth),
            "balanced_accuracy": metrics.balanced_accuracy(p.probs, truth),
            "nll": row_nll(p, target, truth).mean().item(),
            "brier": metrics.brier(p.probs, truth),
            "ece": metrics.ece(p.probs, truth),
            "confidence": p.probs.max(-1).values.double().mean().item(),
            "aurc": metrics.aurc(p.entropy, wrong),
        }
    scale = getattr(target, "scale", 1.0)
    low, high = bounds(p, level, widths)
    return {
        "rmse": scale * metrics.rmse(p.mean, truth),
        "nll": row_nll(p, target, truth).mean().item(),
        "crps": scale * metrics.crps_gaussian(p.mean, p.std, truth),
        "coverage": metrics.coverage(low, high, truth),
        "level": level,
    }


def _decided(table: pd.DataFrame, target: Target, threshold: float) -> pd.Series[Any]:
    if isinstance(target, Classes):
        if not 0 <= threshold <= 1:
            raise expected("threshold", "a confidence in [0, 1]", threshold)
        return table["prediction"].where(table["confidence"] >= threshold, ABSTAIN)
    require(threshold > 0, "threshold", "a positive standard deviation", threshold)
    return table["mean"].astype(object).where(table["std"] <= threshold, ABSTAIN)


def _known(rows: Rows, target: Target) -> np.ndarray[Any, Any]:
    """Rows whose target is present and known to the run."""
    if target.name not in rows.table:
        return np.zeros(len(rows), dtype=bool)
    return target.knows(rows.table[target.name])


def _rows(p: Prediction, keep: Tensor) -> Prediction:
    """The prediction of some rows."""
    parts = {"mean": p.mean, "spread": p.spread, "log_probs": p.log_probs, "expected_entropy": p.expected_entropy}
    kept = {name: None if value is None else value[keep] for name, value in parts.items()}
    outputs = None if p.outputs is None else p.outputs[:, keep]
    return Prediction(p.likelihood, **kept, outputs=outputs, exact=p.exact, class_names=p.class_names)  # type: ignore[arg-type]


def evaluated(
    model: nn.Module,
    posterior: Posterior,
    config: Mapping[str, Any],
    preprocessing: Preprocessing,
    test: Examples | None,
    widths: Sequence[float] | None = None,
) -> tuple[dict[str, pd.DataFrame], dict[str, float]]:
    """Predictions of the held-out rows as the table "predictions", and figures of merit."""
    if test is None:
        return {}, {}
    target = preprocessing.target
    answer = predict(model, posterior, test.inputs, config["samples"], method=config["prediction"], seed=config["seed"])
    table = prediction_table(answer, target, test.ids.numpy(), LEVEL, widths)
    table.insert(1, "label", target.decode(test.targets.reshape(-1).numpy()))
    table["nll"] = row_nll(answer, target, test.targets)
    return {"predictions": table}, scores(answer, target, test.targets, LEVEL, widths)
