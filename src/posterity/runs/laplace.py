"""A run from a network that was trained elsewhere: its weights, the data, and the curvature between them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from posterity.checkpoints import open_checkpoint
from posterity.errors import InvalidInput
from posterity.learning import laplace
from posterity.runs._folder import RunFolder
from posterity.runs.fitting import give_up
from posterity.runs.planning import Plan, build
from posterity.runs.predicting import evaluated
from posterity.runs.record import RunRecord
from posterity.runs.targets import Classes


def laplace_run(plan: Plan, checkpoint: Path, *, overwrite: bool = False, **settings: Any) -> RunFolder:
    """Put a Laplace posterior around trained weights, and write the run.

    Args:
        plan: Data, preprocessing and the network, from `prepare`.
        checkpoint: A safetensors file or a state dict.
        overwrite: Replace a run that is already there.
        **settings: What `posterity.laplace` takes (structure, prior_precision, last_layer ...).
    """
    config = replace(plan.config, method="laplace", prediction="linearised", track=False, options=settings)
    plan = replace(plan, config=config)
    model, target = build(plan), plan.preprocessing.target
    load_weights(model, checkpoint)
    names = target.names if isinstance(target, Classes) else None
    posterior = laplace(model.eval(), plan.train, likelihood=target.likelihood, class_names=names, **settings)
    tables, figures = evaluated(model, posterior, vars(plan.config), plan.preprocessing, plan.test)
    record = RunRecord(
        **plan.content(),
        status="finished",
        rows=plan.rows,
        metrics=figures,
        notes=plan.notes,
        checkpoint=str(checkpoint.absolute()),
    )
    parts: dict[str, Any] = {"model": model, "posterior": posterior, "record": record, "history": []}
    run = RunFolder.create(plan.folder, **parts, tables=tables, overwrite=overwrite)
    give_up(plan.folder)
    return run


@torch.no_grad()
def load_weights(model: nn.Module, checkpoint: Path) -> None:
    """Fill a network with the tensors of a checkpoint, every one of them, and nothing else."""
    stored = open_checkpoint(checkpoint)
    there = {name: t for name, t in model.state_dict(keep_vars=True).items() if isinstance(t, torch.Tensor)}
    for name, tensor in there.items():
        entry = stored.find(name)
        if entry is None:
            raise InvalidInput(f"{checkpoint}: expected a tensor {name!r} for the model, got none")
        if tuple(entry.shape) != tuple(tensor.shape):
            wanted, got = tuple(tensor.shape), tuple(entry.shape)
            raise InvalidInput(f"{checkpoint}: expected shape {wanted} for {name!r}, got {got}")
        tensor.copy_(stored.read(name, 0, entry.count).reshape(tensor.shape))
    for name in stored.entries:
        if name not in there:
            raise InvalidInput(f"{checkpoint}: expected only tensors of the model, got {name!r}, too")
