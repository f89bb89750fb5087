"""Loading and converting optimizer state: names and shapes are checked first, and state keeps its own precision.

`torch.optim.Optimizer.load_state_dict` casts every tensor to the dtype of its parameter, which would round the
float32 state of half-precision parameters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import StateDict

from posterity.errors import InvalidInput, expected
from posterity.trees import state_dtype

if TYPE_CHECKING:
    from posterity.optim._variational import Group, VariationalOptimizer


@contextmanager
def checked(optimizer: VariationalOptimizer) -> Iterator[None]:
    """While open, `load_state_dict` refuses state of others and other shapes, and halves keep float32 state."""
    final: list[StateDict] = []

    def check(_: Optimizer, state_dict: StateDict) -> None:
        if any("hess" in group for group in state_dict["param_groups"]):
            raise InvalidInput("state dict: expected one of this optimizer, got one of ivon-opt; see `load_ivon_opt`")
        for group, p, values in _matched(optimizer, state_dict):
            _check_names(optimizer, p, group, values)
            _check_shapes(p, values)
        final.append(state_dict)

    def recast(loaded: Optimizer) -> None:
        for _, p, values in _matched(optimizer, final[0]):
            for name, value in values.items():
                if isinstance(value, Tensor) and name != "step":
                    loaded.state[p][name] = value.to(device=p.device, dtype=state_dtype(p.dtype), copy=True)

    before = optimizer.register_load_state_dict_pre_hook(check)
    after = optimizer.register_load_state_dict_post_hook(recast, prepend=True)
    try:
        yield
    finally:
        before.remove()
        after.remove()


def followed(state: dict[str, Tensor], p: Tensor) -> dict[str, Tensor]:
    """The state of a parameter, converted in place where the parameter has been: all but its count of steps."""
    dtype = state_dtype(p.dtype)
    for name, t in state.items():
        if name != "step" and (t.dtype != dtype or t.device != p.device):
            state[name] = t.to(p.device, dtype)
    return state


def with_plain_counters(state_dict: StateDict) -> StateDict:
    """The same state dict, with numbers for tensors that count draws and skipped steps."""
    for group in state_dict["param_groups"]:
        group.update({name: int(group[name]) for name in ("draws", "skipped")})
    return state_dict


def _matched(optimizer: VariationalOptimizer, state_dict: StateDict) -> Iterator[tuple[Group, Tensor, dict[str, Any]]]:
    saved = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
    for key, (group, p) in zip(saved, optimizer._parameters(), strict=False):  # torch refuses lists of other lengths
        yield group, p, state_dict["state"].get(key, {})


def _check_names(optimizer: VariationalOptimizer, p: Tensor, group: Group, values: dict[str, Any]) -> None:
    wanted, kind = optimizer.initial_state(p, group), type(optimizer).__name__
    mine = wanted.keys() <= values.keys() if "step" in values else values.keys() <= set(optimizer.given)
    if not mine:
        raise expected("state dict", f"one of {kind}, with {', '.join(wanted)} of a parameter", ", ".join(values))


def _fits(value: Tensor, p: Tensor) -> bool:
    """Whether state has a number or a row for each weight, or is a matrix for one side of a weight."""
    sides = (p.shape[0], math.prod(p.shape[1:])) if p.ndim > 1 else ()
    square = value.ndim == 2 and value.shape[0] == value.shape[1] and value.shape[0] in sides
    return value.shape[: p.ndim] == p.shape or square


def _check_shapes(p: Tensor, values: dict[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, Tensor) and value.ndim > 0 and not _fits(value, p):
            raise expected(f"state dict, {name!r} of a parameter", f"shape {tuple(p.shape)}", tuple(value.shape))
        if isinstance(value, Tensor) and not bool(torch.isfinite(value).all()):
            raise InvalidInput(f"state dict, {name!r} of a parameter: expected finite numbers, got NaN or infinity")
