"""Cross-validation of a run before it is trained: how long to train, and which labels look wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from posterity.files import read_tensors, write_tensors
from posterity.learning.folds import OutOfFold, out_of_fold
from posterity.likelihoods import likelihood
from posterity.memory.label_errors import label_errors
from posterity.runs.preprocessing import Examples
from posterity.runs.targets import Classes, Target

FILE = "folds.safetensors"  # in the folder of work
COLUMNS = ("out_of_fold_nll", "label_error", "suggested_label", "suggestion_confidence")


def cross_validated(
    make: Callable[[int], nn.Module],
    train: Examples,
    target: Target,
    folds: int,
    **settings: Any,
) -> OutOfFold:
    """Train a network for each fold, from the seeds after that of the run.

    Args:
        make: A function from a seed to a network.
        train: The training examples.
        target: What is predicted.
        folds: Number of parts.
        **settings: What `out_of_fold` takes: the seed of the run, batch_size, lr, decay.
    """
    networks = [make(settings["seed"] + 1 + k) for k in range(folds)]
    device = next(networks[0].parameters()).device
    inputs, targets = train.inputs.to(device), train.targets.to(device)
    return out_of_fold(networks, inputs, targets, likelihood(target.likelihood), **settings)


def scores(found: OutOfFold, train: Examples, target: Target) -> pd.DataFrame:
    """The folds' results for each training row, as the table "folds" of a run.

    Columns: id; out_of_fold_nll; for classes label_error (the probability that the label is wrong), suggested_label
    and suggestion_confidence.
    """
    losses = likelihood(target.likelihood).loss(found.outputs, train.targets.to(found.outputs.device))
    table = pd.DataFrame({"id": train.ids.numpy(), "out_of_fold_nll": losses.double().cpu().numpy()})
    if isinstance(target, Classes):
        errors = label_errors(found.outputs.cpu(), found.average.cpu(), train.targets)
        table["label_error"] = errors.probability.numpy()
        table["suggested_label"] = errors.suggestion.numpy()
        table["suggestion_confidence"] = errors.confidence.numpy()
    return table


def keep(found: OutOfFold, work: Path) -> None:
    """Write the predictions to the folder of work, so that a resumed training has them too."""
    work.mkdir(parents=True, exist_ok=True)
    about = torch.tensor([found.steps, found.loss, float(found.memorises), found.shrink], dtype=torch.float64)
    write_tensors(work / FILE, {"outputs": found.outputs, "average": found.average, "about": about})


def kept(work: Path) -> OutOfFold | None:
    """What `keep` wrote; None where nothing was."""
    if not (work / FILE).is_file():
        return None
    stored = read_tensors(work / FILE)
    steps, loss, memorises, shrink = stored["about"].tolist()
    return OutOfFold(stored["outputs"], stored["average"], int(steps), loss, bool(memorises), shrink=shrink)
