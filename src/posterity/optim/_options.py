"""Hyperparameters that the optimizers share: how they are checked, in torch's own words where torch has some."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
from torch import Tensor

from posterity.errors import InvalidInput, require
from posterity.optim._distributed import sharded

RANGES = {  # what a number has to be, in words and in code
    "a number >= 0": lambda x: 0 <= x < math.inf,
    "a positive finite number": lambda x: 0 < x < math.inf,
    "a positive number": lambda x: x > 0,
    "a number in [0, 1)": lambda x: 0 <= x < 1,
    "a number in (0, 1]": lambda x: 0 < x <= 1,
}


def check_parameters(parameters: Iterable[Tensor], shards: bool) -> None:
    """Real numbers, and whole tensors unless the optimizer can work on shards."""
    for p in parameters:
        require(p.is_floating_point(), "params", "real floating-point parameters", p.dtype)
        require(shards or not sharded(p), "params", "whole parameters on each process", "sharded ones")


def check_number(what: str, value: Any, wanted: str) -> None:
    """A number of Python's or numpy's in one of the `RANGES`, and no tensor, word or truth value."""
    plain = isinstance(value, Real) and not isinstance(value, bool)
    require(plain and RANGES[wanted](float(value)), what, wanted, value)


def check_lr(lr: Any) -> None:
    """A learning rate: a number >= 0, or a tensor of one."""
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise InvalidInput(f"Tensor lr must be 1-element, got shape {tuple(lr.shape)}")
    check_number("Invalid learning rate", lr.item() if isinstance(lr, Tensor) else lr, "a number >= 0")


def check_weight_decay(weight_decay: Any) -> None:
    """Weight decay."""
    check_number("Invalid weight_decay value", weight_decay, "a number >= 0")


def check_eps(eps: Any) -> None:
    """What keeps a denominator from zero."""
    check_number("Invalid epsilon value", eps, "a number >= 0")


def check_beta(beta: Any, index: int = 0) -> None:
    """The decay of an average."""
    check_number(f"Invalid beta parameter at index {index}", beta, "a number in [0, 1)")


def check_betas(betas: Any, auto: bool = False) -> None:
    """The decays of two averages; with `auto`, the second may be "auto"."""
    require(isinstance(betas, Sequence) and len(betas) == 2, "betas", "two numbers", betas)
    check_beta(betas[0])
    if auto and isinstance(betas[1], str):
        require(betas[1] == "auto", "Invalid beta parameter at index 1", "a number in [0, 1), or 'auto'", betas[1])
    else:
        check_beta(betas[1], 1)


def check_posterior(group: Mapping[str, Any]) -> None:
    """What decides the width of a diagonal posterior, how fast its mean moves, and its noise."""
    check_lr(group["lr"])
    for name in ("ess", "hess_init"):
        check_number(name, group[name], "a positive finite number")
    check_weight_decay(group["weight_decay"])
    check_seed(group["seed"])


def check_seed(seed: Any) -> None:
    """The seed of the noise: a whole number of Python's or numpy's."""
    require(isinstance(seed, Integral) and not isinstance(seed, bool), "seed", "a whole number", seed)


def check_flag(what: str, value: Any) -> None:
    """A truth value of Python's or numpy's, and nothing that only counts as one."""
    require(isinstance(value, (bool, np.bool_)), what, "True or False", value)


def floats(group: Mapping[str, Any], *names: str) -> dict[str, float]:
    """Some settings of a group as the numbers of equations; weight decay is δ there."""
    return {"delta" if name == "weight_decay" else name: float(group[name]) for name in names}


def number(lr: float | Tensor) -> float | Tensor:
    """A learning rate that arithmetic broadcasts over anything."""
    return lr.reshape(()) if isinstance(lr, Tensor) else lr
