"""The columns of a memory map, from the dual of one batch at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from posterity.batches import Batch
from posterity.errors import InvalidInput
from posterity.likelihoods import CategoricalLikelihood, Likelihood
from posterity.memory._dual import Dual
from posterity.memory.leave_one_out import labels_of, without_itself
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
    found |= _readable("prediction", likelihood, _decided(likelihood, dual.outputs))
    found |= {
        "error": (before - _as_mean(likelihood, dual.targets, before)).norm(dim=-1),
        "leverage": dual.leverage,
        "variance": dual.variance.diagonal(dim1=-2, dim2=-1).sum(-1),
        "sensitivity": (after - before).abs().sum(-1),
        "self_influence": dual.self_influence,
        "relevance": dual.curvature.diagonal(dim1=-2, dim2=-1).sum(-1),
        "loss": likelihood.loss(dual.outputs, dual.targets),
        "loo_nll": without.nll,
    }
    found |= _readable("loo_prediction", likelihood, _decided(likelihood, without.outputs))
    found |= {name: score(name)(dual, batch) for name in scores if name != "influence"}
    if test is not None:
        found["influence"] = influence(trained, batch, test)
    found = {name: column.detach().cpu() for name, column in found.items()}
    _check_finite(found)
    return found


def _decided(likelihood: Likelihood, f: Tensor) -> Tensor:
    """What is predicted, in the form of a target: the likeliest class, or the mean."""
    return f.argmax(-1) if isinstance(likelihood, CategoricalLikelihood) else likelihood.mean(f)


def _as_mean(likelihood: Likelihood, y: Tensor, like: Tensor) -> Tensor:
    """Targets in the form of a mean: one-hot for class labels."""
    if isinstance(likelihood, CategoricalLikelihood) and not y.is_floating_point():
        return torch.nn.functional.one_hot(y.long(), like.shape[-1]).to(like)
    return y.to(like)


def _readable(name: str, likelihood: Likelihood, y: Tensor) -> Columns:
    """A target as columns: one label, one number, or as many numbers as there are outputs."""
    if isinstance(likelihood, CategoricalLikelihood):
        return {name: labels_of(y)}
    if y.shape[-1] == 1:
        return {name: y[:, 0]}
    return {f"{name}_{k}": y[:, k] for k in range(y.shape[-1])}


def _check_finite(found: Columns) -> None:
    for name, column in found.items():
        wrong = found["id"][~torch.isfinite(column)]
        if len(wrong):
            raise InvalidInput(f"{name}: expected finite numbers, got NaN or infinity for the ids {wrong[:5].tolist()}")
