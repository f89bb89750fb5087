"""Model inputs, whatever their nesting: how many examples, and a few of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor

from posterity.batches import Inputs
from posterity.errors import expected


def over_tensors(function: Callable[[Tensor], Any], inputs: Inputs) -> Any:
    """Apply a function to every tensor of nested inputs; anything else stays as it is."""
    if isinstance(inputs, Tensor):
        return function(inputs)
    if isinstance(inputs, Mapping):
        return {name: over_tensors(function, value) for name, value in inputs.items()}
    if isinstance(inputs, (tuple, list)):
        return type(inputs)(over_tensors(function, value) for value in inputs)
    return inputs


def length(inputs: Inputs) -> int:
    """Number of examples: the length of the first tensor."""
    first = next(tensors(inputs), None)
    if first is None or first.dim() == 0:
        raise expected("inputs", "tensors with the examples on the first axis", type(inputs).__name__)
    return len(first)


def take(inputs: Inputs, examples: slice) -> Inputs:
    """Some of the examples."""
    return over_tensors(lambda x: x[examples], inputs)


def tensors(inputs: Inputs) -> Iterator[Tensor]:
    if isinstance(inputs, Tensor):
        yield inputs
    elif isinstance(inputs, Mapping):
        for value in inputs.values():
            yield from tensors(value)
    elif isinstance(inputs, (tuple, list)):
        for value in inputs:
            yield from tensors(value)
