"""Models and threads: a private double to compute with, and one thread at a time where the model itself is changed."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

_LOCKS: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()
_GUARD = threading.Lock()
# These keep references to the modules they were made from (captured code, shards, replicas), which a double would miss.
_ELSEWHERE = ("torch.jit", "torch._dynamo", "torch.distributed", "torch.nn.parallel")
_MACHINERY = {key for key, value in vars(nn.Module()).items() if isinstance(value, dict | set)}  # places and hooks
_EMPTY = CellType()


@contextmanager
def exclusive(model: nn.Module) -> Iterator[None]:
    """This thread alone may change the model; others that ask for the same wait. May be nested."""
    with _GUARD:
        lock = _LOCKS.setdefault(model, threading.RLock())
    with lock:
        yield


def duplicate(model: nn.Module) -> nn.Module:
    """A deep copy, made while no other thread has hooks in the model or drawn weights."""
    with exclusive(model):
        return copy.deepcopy(model)


def double(model: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module | None:
    """A model that computes the same from other tensors, or None where that cannot be promised.

    The double has modules, parameters, hooks and modes of its own: changes to it do not reach the model. Tensors are
    not copied; what `tensors` does not name is shared with the model.

    Args:
        model: A model, which is only read.
        tensors: Values of parameters and buffers by name; tied ones are replaced in all their places.

    Examples:
        >>> import torch
        >>> model = nn.Linear(2, 1, bias=False)
        >>> twin = double(model, {"weight": torch.ones(1, 2)})
        >>> twin(torch.tensor([2.0, 3.0])).item(), twin.weight is model.weight
        (5.0, False)
    """
    modules = list(model.modules())
    named: list[tuple[str, Tensor]] = [*model.named_parameters(), *model.named_buffers()]
    parts = {id(part) for part in (*modules, *(t for _, t in named))}
    if not all(_is_plain(module, parts) for module in modules):
        return None
    own: dict[int, Any] = {id(module): object.__new__(type(module)) for module in modules}
    own |= {id(t): _like(t, tensors.get(name, t)) for name, t in named}
    for module in modules:
        kept = {key: value.copy() if key in _MACHINERY else value for key, value in vars(module).items()}
        vars(own[id(module)]).update({key: _translated(value, own) for key, value in kept.items()})
    twin: nn.Module = own[id(model)]
    return twin


def _is_plain(module: nn.Module, parts: Set[int]) -> bool:
    """Whether all that a module computes with is in its own attributes."""
    tensors = [t for t in (*module._parameters.values(), *module._buffers.values()) if t is not None]
    return (
        not any(kind.__module__.startswith(_ELSEWHERE) for kind in type(module).__mro__)
        and all(type(t) in (Tensor, nn.Parameter) for t in tensors)
        and "forward" not in vars(module)  # replaced in this object, perhaps by a function that holds the object
        and getattr(module, "_compiled_call_impl", None) is None
        and not any(_holds(value, parts) for value in vars(module).values())
    )


def _holds(value: Any, parts: Set[int]) -> bool:
    """Whether a function or object that cannot be translated keeps a module or tensor of the model."""
    if isinstance(value, FunctionType):
        inside: Iterable[Any] = [cell.cell_contents for cell in value.__closure__ or () if cell != _EMPTY]
    elif isinstance(value, partial):
        inside = (value.func, *value.args, *value.keywords.values())
    elif type(value) in (dict, OrderedDict):
        return any(_holds(entry, parts) for entry in value.values() if isinstance(entry, (FunctionType, partial)))
    elif isinstance(value, (nn.Module, Tensor, type, MethodType)):
        return False
    else:
        inside = getattr(value, "__dict__", {}).values()
    return any(
        id(entry) in parts or (isinstance(entry, MethodType) and id(entry.__self__) in parts) for entry in inside
    )


def _like(t: Tensor, value: Tensor) -> Tensor:
    value = value.detach()
    if not isinstance(t, nn.Parameter):
        return value
    parameter = nn.Parameter(value.clone() if value.is_inference() else value, requires_grad=t.requires_grad)
    vars(parameter).update(vars(t))
    return parameter


def _translated(value: Any, own: Mapping[int, Any], depth: int = 3) -> Any:
    """An attribute for the double: modules and tensors of the model become its own, also within containers."""
    if id(value) in own:
        return own[id(value)]
    if isinstance(value, MethodType) and id(value.__self__) in own:
        return MethodType(value.__func__, own[id(value.__self__)])
    if depth == 0 or type(value) not in (dict, OrderedDict, list, tuple, set):
        return value
    mapping = isinstance(value, dict)
    before = list(value.values() if mapping else value)
    after = [_translated(entry, own, depth - 1) for entry in before]
    if all(one is other for one, other in zip(before, after, strict=True)):
        return value  # what a module gathers in a list of its own, the caller finds there
    return type(value)(zip(value, after, strict=True) if mapping else after)
