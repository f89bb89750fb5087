"""The columns of a memory map, from the dual of one batch at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from posterity.batches import Batch
from posterity.errors import InvalidInput
from posterity.likelihoods import Likelihood
from posterity.memory._dual import Dual
from posterity.memory.leave_one_out import without_itself
from posterity.memory.scores import influence, score
from posterity.posterior import FittedModel
from posterity.trees import Tree

Columns = dict[str, Tensor]


def columns(
    trained: FittedModel, dual: Dual, batch: Batch, deflate: bool, scores: Sequence[str], test: Tree | None
) -> Columns:
    """One tensor (B,) for each column, on the CPU; NaN or infinity in any of them is an error."""
    likelihood = trained.likelihood
    without = without_itself(dual, deflate)
    before, after = likelihood.mean(dual.outputs), without.predictions
    found: Columns = {"id": dual.ids}
    found |= _readable("label", likelihood, dual.targets)
    found |= _readable("prediction", likelihood, likelihood.predicted(dual.outputs))
    found |= {
        "error": (before - likelihood.as_mean(dual.targets, before.shape[-1]).to(before)).norm(dim=-1),
        "leverage": dual.leverage,
        "variance": dual.variance.diagonal(dim1=-2, dim2=-1).sum(-1),
        "sensitivity": (after - before).abs().sum(-1),
        "self_influence": dual.self_influence,
        "relevance": dual.curvature.diagonal(dim1=-2, dim2=-1).sum(-1),
        "loss": likelihood.loss(dual.outputs, dual.targets),
        "loo_nll": without.nll,
    }
    found |= _readable("loo_prediction", likelihood, likelihood.predicted(without.outputs))
    found |= {name: score(name)(dual, batch) for name in scores if name != "influence"}
    if test is not None:
        found["influence"] = influence(trained, batch, test)
    found = {name: column.detach().cpu() for name, column in found.items()}
    _check_finite(found)
    return found


def _readable(name: str, likelihood: Likelihood, y: Tensor) -> Columns:
    """A target as columns: one label, one number, or as many numbers as there are outputs."""
    if likelihood.has_class_axis:
        return {name: likelihood.labels(y)}
    if y.shape[-1] == 1:
        return {name: y[:, 0]}
    return {f"{name}_{k}": y[:, k] for k in range(y.shape[-1])}


def _check_finite(found: Columns) -> None:
    for name, column in found.items():
        wrong = found["id"][~torch.isfinite(column)]
        if len(wrong):
            raise InvalidInput(f"{name}: expected finite numbers, got NaN or infinity for the ids {wrong[:5].tolist()}")
