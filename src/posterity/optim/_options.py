"""Hyperparameters that the optimizers share: how they are checked, in torch's own words where torch has some."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

from torch import Tensor

from posterity.errors import InvalidInput, require, require_positive
from posterity.optim._distributed import sharded


def check_parameters(parameters: Iterable[Tensor], shards: bool) -> None:
    """Real numbers, and whole tensors unless the optimizer can work on shards."""
    for p in parameters:
        require(p.is_floating_point(), "params", "real floating-point parameters", p.dtype)
        require(shards or not sharded(p), "params", "whole parameters on each process", "sharded ones")


def check_lr(lr: Any) -> None:
    """A learning rate: a number >= 0, or a tensor of one."""
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise InvalidInput(f"Tensor lr must be 1-element, got shape {tuple(lr.shape)}")
    require(bool(0 <= lr < math.inf), "Invalid learning rate", "a number >= 0", lr)


def check_beta(beta: Any, index: int, words: str = "a number in [0, 1)") -> None:
    """The decay of an average."""
    number = isinstance(beta, Real) and 0 <= float(beta) < 1
    require(number, f"Invalid beta parameter at index {index}", words, beta)


def check_weight_decay(weight_decay: Any) -> None:
    """Weight decay."""
    require(0 <= weight_decay < math.inf, "Invalid weight_decay value", "a number >= 0", weight_decay)


def check_posterior(group: Mapping[str, Any]) -> None:
    """What decides the width of a diagonal posterior, how fast its mean moves, and its noise."""
    check_lr(group["lr"])
    for name in ("ess", "hess_init"):
        require_positive(name, group[name])
    check_weight_decay(group["weight_decay"])
    check_seed(group["seed"])


def check_seed(seed: Any) -> None:
    """The seed of the noise: whatever Python takes for a whole number."""
    require(hasattr(seed, "__index__"), "seed", "a whole number", seed)


def check_betas(betas: Any, auto: bool = False) -> None:
    """The decays of two averages; with `auto`, the second may be "auto"."""
    require(isinstance(betas, Sequence) and len(betas) == 2, "betas", "two numbers", betas)
    check_beta(betas[0], 0)
    if not auto:
        check_beta(betas[1], 1)
    elif betas[1] != "auto":
        check_beta(betas[1], 1, "a number in [0, 1), or 'auto'")


def number(lr: float | Tensor) -> float | Tensor:
    """A learning rate that arithmetic broadcasts over anything."""
    return lr.reshape(()) if isinstance(lr, Tensor) else lr
