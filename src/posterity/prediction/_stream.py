"""Anything that holds inputs, as a stream of batches of inputs; targets are left aside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from posterity import distributed
from posterity.batches import Batches, OwnPart, as_tensor, batches, inputs_of, some_of
from posterity.errors import expected, require, require_whole
from posterity.inputs import Inputs, length, take, tensors

GROUP = 2**24  # bytes of inputs that are answered together


def stream(data: Any, batch_size: int) -> tuple[Iterable[Inputs], int | None]:
    """The batches of inputs that fall to this process, and their number if it is known.

    Args:
        data: Inputs (a tensor, an array, a mapping of them that the model takes as keywords), `(inputs, targets)`,
            a Dataset, a DataLoader, `Batches`, or any iterable of batches.
        batch_size: Examples a batch, where the data do not come in batches.
    """
    require_whole("batch_size", batch_size)
    if isinstance(data, Mapping):
        data = {name: as_tensor(value) if hasattr(value, "__array__") else value for name, value in data.items()}
    elif hasattr(data, "__array__"):
        data = as_tensor(data)
    if isinstance(data, (Tensor, Mapping)):
        return _split(inputs_of(data), batch_size)
    if isinstance(data, tuple):
        data = batches(data, batch_size=batch_size)
    elif isinstance(data, Dataset):
        data = DataLoader(data, batch_size=batch_size)
    if isinstance(data, DataLoader) and not distributed.alone():
        data = some_of(data, distributed.part(len(data)))
    if isinstance(data, Batches):
        data = OwnPart(data)
    if isinstance(data, (OwnPart, DataLoader)):
        return (inputs_of(item) for item in data), _count(data)
    if isinstance(data, Iterable):
        require(distributed.alone(), "inputs shared between processes", "a known number of batches", "an iterable")
        return (inputs_of(item) for item in data), None
    raise expected("inputs", "a tensor, a mapping of tensors, a Dataset or a DataLoader", type(data).__name__)


def _count(data: OwnPart | DataLoader[Any]) -> int | None:
    """Number of batches; None for a stream without a length."""
    try:
        return len(data)
    except TypeError:
        return None


def _split(inputs: Inputs, batch_size: int) -> tuple[Iterator[Inputs], int]:
    n = length(inputs)
    require(n > 0, "inputs", "at least one example", "none")
    lengths = {len(t) for t in tensors(inputs)}
    require(lengths == {n}, "inputs", f"{n} examples in every tensor", sorted(lengths))
    starts = range(0, n, batch_size)
    own = distributed.part(len(starts))
    starts = starts[own.start : own.stop]
    return (take(inputs, slice(start, start + batch_size)) for start in starts), len(starts)


def grouped(batches: Iterable[Inputs]) -> Iterator[list[Inputs]]:
    """Consecutive batches that are not empty, as many as fit a memory budget, checked for NaN."""
    group: list[Inputs] = []
    size = 0
    for inputs in batches:
        _check_numbers(inputs)
        if next(tensors(inputs)).shape[:1] == (0,):
            continue
        group.append(inputs)
        size += sum(t.nbytes for t in tensors(inputs))
        if size >= GROUP:
            yield group
            group, size = [], 0
    if group:
        yield group


def _check_numbers(inputs: Inputs) -> None:
    found = list(tensors(inputs))
    require(len(found) > 0, "inputs", "batches of tensors (po.tokenised makes them of texts)", type(inputs).__name__)
    for t in found:
        if t.is_floating_point():
            count = int(t.isnan().sum())
            require(count == 0, "inputs", "numbers", f"{count} NaN")
