"""What a model is given, however nested: how many examples, a few of them, on a device; and the model's answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from posterity.errors import InvalidInput, expected

Inputs = Any  # a Tensor, or tensors in mappings (keyword arguments of the model) and tuples (positional ones)


def over_tensors(function: Callable[[Tensor], Any], inputs: Inputs) -> Any:
    """Apply a function to every tensor of nested inputs; anything else is not changed."""
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


def take(inputs: Inputs, rows: slice | Tensor | None) -> Inputs:
    """Some of the examples, by a slice or by their positions on any device; all of them where `rows` is None."""
    if rows is None:
        return inputs
    return over_tensors(lambda x: x[rows.to(x.device) if isinstance(rows, Tensor) else rows], inputs)


def concatenate(parts: Sequence[Inputs]) -> Inputs:
    """The examples of several inputs, one after the other.

    Examples:
        >>> concatenate([(torch.tensor([1]), {"b": torch.tensor([2])}), (torch.tensor([3]), {"b": torch.tensor([4])})])
        (tensor([1, 3]), {'b': tensor([2, 4])})
    """
    first = parts[0]
    if isinstance(first, Mapping):
        return {name: concatenate([part[name] for part in parts]) for name in first}
    if isinstance(first, (tuple, list)):
        return type(first)(concatenate(column) for column in zip(*parts))
    return torch.cat(list(parts))


def plain(column: Tensor) -> Tensor:
    """The same without a graph of its own; batches are rows of it, which sparse tensors do not have.

    Examples:
        >>> plain(torch.ones(2, requires_grad=True))
        tensor([1., 1.])
    """
    if column.layout not in (torch.strided, torch.jagged):
        raise expected("data", "dense tensors (`.to_dense()`)", column.layout)
    return column.detach()


def tensors(inputs: Inputs) -> Iterator[Tensor]:
    """Every tensor of nested inputs."""
    if isinstance(inputs, Tensor):
        yield inputs
    elif isinstance(inputs, Mapping):
        for value in inputs.values():
            yield from tensors(value)
    elif isinstance(inputs, (tuple, list)):
        for value in inputs:
            yield from tensors(value)


def move(inputs: Inputs, device: torch.device | str) -> Inputs:
    """The inputs on a device."""
    return over_tensors(lambda x: x.to(device), inputs)


def call(model: Callable[..., Any], inputs: Inputs) -> Tensor:
    """The model's logits: mappings become keyword arguments, tuples positional ones, `.logits` is unwrapped."""
    if isinstance(inputs, Mapping):
        out = model(**inputs)
    elif isinstance(inputs, (tuple, list)):
        out = model(*inputs)
    else:
        out = model(inputs)
    out = getattr(out, "logits", out)
    if not isinstance(out, Tensor):
        raise expected("model output", "a tensor of logits, or an object with `.logits`", type(out).__name__)
    return out


def attempt(model: Callable[..., Any], inputs: Inputs) -> Tensor:
    """The model's logits, or an error that names the inputs where the model does not take them."""
    try:
        return call(model, inputs)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, IndexError) as why:
        got = ", ".join(f"{str(t.dtype).removeprefix('torch.')} {tuple(t.shape)}" for t in tensors(inputs))
        raise InvalidInput(f"inputs: expected what the model takes, got {got}: {why}") from why
