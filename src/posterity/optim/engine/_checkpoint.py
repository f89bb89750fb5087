"""Loading and converting optimizer state: names and shapes are checked first, and state keeps its own precision.

`torch.optim.Optimizer.load_state_dict` casts every tensor to the dtype of its parameter, which would round the
float32 state of half-precision parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import StateDict

from posterity.errors import InvalidInput, expected
from posterity.optim._forms import check_count, check_form, check_once, check_tensor
from posterity.optim._options import check_counters
from posterity.optim.engine._equations import Equations
from posterity.optim.engine._parameters import Group, Parameters
from posterity.optim.kernels import Numbers, Views
from posterity.trees import state_dtype

COUNTS = ("step", "forgetting", "scatter", "spread")  # sums of what is never negative
COUNTED = ("step", "updates")
Precision = Callable[[Views, Numbers], Tensor | float]


@contextmanager
def checked(
    optimizer: Optimizer, parameters: Parameters, equations: Equations, given: Collection[str]
) -> Iterator[None]:
    """While open, `load_state_dict` refuses state of others and other shapes, and halves keep float32 state.

    Args:
        optimizer: Whose `load_state_dict` it is.
        parameters: Its parameters.
        equations: Its equations: they check options and list the state that a parameter must have.
        given: Names of the state that users may set before.
    """
    final: list[StateDict] = []

    def check(_: Optimizer, state_dict: StateDict) -> None:
        if _of_ivon_opt(state_dict.get("param_groups")):
            raise InvalidInput("state dict: expected one of this optimizer, got one of ivon-opt; see `load_ivon_opt`")
        check_form(state_dict)
        check_once(state_dict)
        for saved in state_dict["param_groups"]:
            check_counters(saved)
            equations.options_of({**optimizer.defaults, **saved}).check()
        for group, p, values in _matched(parameters, state_dict):
            wanted = equations.initial_state(p, equations.options_of(group))
            _check_names(wanted, given, equations.beside, values, type(optimizer).__name__)
            _check_tensors(p, wanted, given, values)
            _check_precision(equations.precision, equations.numbers(p, equations.options_of(group)), p, values)
        final.append(state_dict)

    def recast(loaded: Optimizer) -> None:
        for _, p, values in _matched(parameters, final[0]):
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


def with_plain_counters(state_dict: StateDict) -> StateDict:
    """The same state dict, with numbers for tensors that count draws and skipped steps."""
    for group in state_dict["param_groups"]:
        group.update({name: int(group[name]) for name in ("draws", "skipped")})
    return state_dict


def _of_ivon_opt(groups: Any) -> bool:
    return isinstance(groups, list) and any(isinstance(group, dict) and "hess" in group for group in groups)


def _matched(parameters: Parameters, state_dict: StateDict) -> Iterator[tuple[Group, Tensor, dict[str, Any]]]:
    saved = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
    for key, (group, p) in zip(saved, parameters, strict=False):  # torch refuses lists of other lengths
        yield group, p, state_dict["state"].get(key, {})


def _check_names(
    wanted: Views, given: Collection[str], beside: Collection[str], values: dict[str, Any], kind: str
) -> None:
    known = {*given, *beside, *COUNTED, *wanted} if "step" in values else {*given}
    if not values.keys() <= known or ("step" in values and not wanted.keys() <= values.keys()):
        raise expected("state dict", f"one of {kind}, with {', '.join(wanted)} of a parameter", ", ".join(values))


def _fits(value: Tensor, p: Tensor) -> bool:
    """Whether state has a number or a row for each weight, or is a matrix for one side of a weight."""
    sides = (p.shape[0], math.prod(p.shape[1:])) if p.ndim > 1 else ()
    square = value.ndim == 2 and value.shape[0] == value.shape[1] and value.shape[0] in sides
    return value.shape[: p.ndim] == p.shape or square


def _check_tensors(p: Tensor, wanted: Views, given: Collection[str], values: dict[str, Any]) -> None:
    for name, value in values.items():
        if name == "step":
            continue
        like = wanted[name].shape if name in wanted else p.shape if name in given else None
        check_tensor(name, value, p, like)
        if like is None and value.ndim > 0 and not _fits(value, p):
            raise expected(f"state dict, {name!r} of a parameter", f"shape {tuple(p.shape)}", tuple(value.shape))


def _check_precision(precision: Precision, numbers: Numbers, p: Tensor, values: dict[str, Any]) -> None:
    view = {name: t for name, t in values.items() if isinstance(t, Tensor) and t.ndim == p.ndim and t.shape == p.shape}
    found = torch.as_tensor(precision(view, numbers))
    if not bool((found > 0).all()):
        raise expected("state dict, posterior precision of a parameter", "positive numbers", float(found.min()))
    for name in COUNTS:
        check_count(f"state dict, {name!r} of a parameter", values.get(name, 0))
