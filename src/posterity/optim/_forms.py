"""The form of a state dict: groups of parameters, state by parameter, and tensors of the right shapes in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from posterity.errors import InvalidInput, expected, require
from posterity.optim._options import LARGEST, check_finite
from posterity.trees import state_dtype


def check_form(state_dict: Any) -> None:
    """Raise unless it has groups, each with its parameters, and a state for some of these."""
    require(isinstance(state_dict, Mapping), "state dict", "a dictionary", type(state_dict).__name__)
    groups, state = state_dict.get("param_groups"), state_dict.get("state")
    named = isinstance(groups, (list, tuple)) and all(_is_group(group) for group in groups)
    require(named, "state dict, 'param_groups'", "a list of groups with 'params'", _brief(groups))
    known = isinstance(state, Mapping) and all(isinstance(values, Mapping) for values in state.values())
    require(known, "state dict, 'state'", "a dictionary for each parameter", _brief(state))


def check_once(state_dict: Mapping[str, Any]) -> None:
    """Raise unless its groups have each parameter once."""
    numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
    require(len({*numbers}) == len(numbers), "state dict, 'params'", "each parameter once", numbers)


def check_tensor(name: str, value: Any, p: Tensor, shape: Iterable[int] | None = None) -> None:
    """Raise unless it is a dense tensor of finite numbers, also in the precision in which the state is kept.

    Args:
        name: Its name in the state of a parameter.
        value: What is there.
        p: The parameter.
        shape: The shape that it must have; any by default.
    """
    what = f"state dict, {name!r} of a parameter"
    plain = isinstance(value, Tensor) and value.layout == torch.strided and value.device.type != "meta"
    require(plain and not value.is_complex(), what, "a dense tensor of real numbers", _brief(value))
    if shape is not None and value.shape != torch.Size(shape):
        raise expected(what, f"shape {tuple(shape)}", tuple(value.shape))
    if not bool(torch.isfinite(value.to(state_dtype(p.dtype))).all()):
        raise InvalidInput(f"{what}: expected finite numbers, got NaN or infinity")


def check_count(what: str, value: Any) -> None:
    """Raise unless it is a number from 0 on that a counter holds, or a tensor of one."""
    check_finite(what, value, 0.0)
    require(float(value) < LARGEST, what, "a count below 2^63", value)


def check_parts(mine: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Raise unless each part is there and what it is of now: a dictionary, a list, or a list of lists."""
    for name, own in mine.items():
        kind = Mapping if isinstance(own, Mapping) else (list, tuple)
        fine = isinstance(found.get(name), kind)
        if fine and isinstance(own, list) and own and isinstance(own[0], (list, tuple)):
            fine = all(isinstance(each, (list, tuple)) and len(each) == len(own[0]) for each in found[name])
        require(
            fine,
            f"state dict, {name!r}",
            f"what `state_dict` returns, a {type(own).__name__}",
            _brief(found.get(name)),
        )


def check_many(found: Mapping[str, Any], names: Iterable[str], wanted: int) -> None:
    """Raise unless these parts have as many entries as there are parameters."""
    for name in names:
        require(len(found[name]) == wanted, f"state dict, {name!r}", f"{wanted} entries", len(found[name]))


@contextmanager
def all_or_nothing(*objects: Any) -> Iterator[None]:
    """Give objects their attributes back if what is done to them fails."""
    kept = [dict(vars(each)) for each in objects]
    try:
        yield
    except BaseException:
        for each, attributes in zip(objects, kept, strict=True):
            vars(each).clear()
            vars(each).update(attributes)
        raise


def _is_group(group: Any) -> bool:
    numbers = group.get("params") if isinstance(group, Mapping) else None
    return isinstance(numbers, (list, tuple)) and all(isinstance(number, (int, str)) for number in numbers)


def _brief(value: Any) -> str:
    """What it is, without what is in it: that may be long, or numbers that Python refuses to print."""
    if isinstance(value, Tensor):
        return f"a tensor ({value.layout}, {value.dtype}, {value.device})"
    return repr(value)[:60] if value is None or isinstance(value, (str, float)) else type(value).__name__
