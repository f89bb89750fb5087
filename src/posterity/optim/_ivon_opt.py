"""Checkpoints of the ivon-opt package: flat vectors for each parameter group, cut into state for each parameter."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from posterity.errors import InvalidInput, expected, require
from posterity.optim.ivon import IVON, SCALARS

_OPTIONS = ("lr", "ess", "hess_init", "weight_decay", "clip_radius")


def load_ivon_opt(optimizer: IVON, state_dict: Mapping[str, Any], *, steps: int) -> None:
    """Continue from a checkpoint of the ivon-opt package.

    Options saved in the checkpoint (learning rate, ess, betas and so on) replace those of the optimizer; `debias`,
    `rescale_lr` and `hess_approx` are not saved there and are not changed.

    Args:
        optimizer: An IVON over the same parameters, in the same groups and order.
        state_dict: What ivon-opt's `state_dict()` returned.
        steps: Steps that had been taken; ivon-opt does not save the number, and without it the momentum would be
            debiased as if training had just begun.
    """
    groups = state_dict.get("param_groups", [])
    if not groups or not all("hess" in group and "momentum" in group for group in groups):
        raise InvalidInput("state dict: expected one of ivon-opt, with flat 'hess' and 'momentum' in each group")
    require(isinstance(steps, int) and steps >= 0, "steps", "the number of steps taken", steps)
    require(len(groups) == len(optimizer.param_groups), "param_groups", str(len(optimizer.param_groups)), len(groups))
    ours = optimizer.state_dict()
    number = 0
    for saved, group, target in zip(groups, optimizer.param_groups, ours["param_groups"], strict=True):
        target.update({name: saved[name] for name in _OPTIONS}, betas=(saved["beta1"], saved["beta2"]))
        sizes = [p.numel() for p in group["params"]]
        if saved["hess"].numel() != sum(sizes):
            raise expected("hess of a group", f"{sum(sizes)} numbers", saved["hess"].numel())
        for p, momentum, hessian in zip(
            group["params"], saved["momentum"].split(sizes), saved["hess"].split(sizes), strict=True
        ):
            ours["state"][number] = _state(p, momentum, hessian, steps, saved["beta2"])
            number += 1
    optimizer.load_state_dict(ours)


def _state(p: Tensor, momentum: Tensor, hessian: Tensor, steps: int, beta2: float) -> dict[str, Tensor]:
    return {
        **{name: torch.tensor(0.0, dtype=torch.float32) for name in SCALARS},
        "step": torch.tensor(float(steps), dtype=torch.float32),
        "momentum": momentum.reshape(p.shape).clone(),
        "hessian": hessian.reshape(p.shape).clone(),
        "forgetting": torch.tensor(-steps * math.log(max(beta2, 1e-9)), dtype=torch.float32),
    }
