"""Anything with inputs, targets and ids, as batches with ids and a known N."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler, default_collate

from posterity.errors import InvalidInput, expected, require

Inputs = Any  # a Tensor, or a mapping of tensors that the model takes as keyword arguments


@dataclass(frozen=True)
class Batch:
    """Inputs, targets and the stable ids of the examples they came from."""

    inputs: Inputs
    targets: Tensor
    ids: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on a device."""
        return Batch(move(self.inputs, device), self.targets.to(device), self.ids)


def move(inputs: Inputs, device: torch.device | str) -> Inputs:
    """Tensors (alone, in mappings or in tuples) on a device; anything else as it is."""
    if isinstance(inputs, Tensor):
        return inputs.to(device)
    if isinstance(inputs, Mapping):
        return {name: move(value, device) for name, value in inputs.items()}
    if isinstance(inputs, (tuple, list)):
        return type(inputs)(move(value, device) for value in inputs)
    return inputs


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


@dataclass(frozen=True)
class Batches:
    """Batches over a finite data set: iterate as often as you like; `n` examples in `len` batches.

    Shuffling is a function of (seed, epoch): `epoch(k)` gives the batches of epoch k, the same every time.
    """

    source: Any
    n: int
    batch_size: int
    shuffle: bool
    seed: int
    ids_known: bool

    def __len__(self) -> int:
        if isinstance(self.source, DataLoader):
            return len(self.source)
        return -(-self.n // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        return self.epoch(0)

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of one epoch; with `shuffle`, in the order that belongs to (seed, number)."""
        if isinstance(self.source, DataLoader):
            yield from self._from_loader(self.source)
            return
        order = torch.arange(self.n)
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
            order = torch.randperm(self.n, generator=generator)
        for index in order.split(self.batch_size):
            yield self.take(index)

    def take(self, positions: Tensor) -> Batch:
        """The examples at these positions, as one batch."""
        if isinstance(self.source, DataLoader):
            return _unpack(default_collate([self.source.dataset[int(i)] for i in positions]), positions)
        if isinstance(self.source, tuple):
            inputs = _index(self.source[0], positions)
            ids = self.source[2][positions] if len(self.source) == 3 else positions
            return Batch(inputs, self.source[1][positions], ids)
        return _unpack(default_collate([self.source[int(i)] for i in positions]), positions)

    def _from_loader(self, loader: DataLoader[Any]) -> Iterator[Batch]:
        seen = 0
        for item in loader:
            batch = _unpack(item, None)
            yield Batch(
                batch.inputs,
                batch.targets,
                torch.arange(seen, seen + len(batch.targets)) if not len(batch.ids) else batch.ids,
            )
            seen += len(batch.targets)


def batches(data: Any, *, batch_size: int = 256, shuffle: bool = False, seed: int = 0) -> Batches:
    """Batches of anything that holds examples.

    Args:
        data: `(inputs, targets)` or `(inputs, targets, ids)` of tensors or arrays (inputs may be a mapping of
            tensors); a map-style Dataset of such tuples or of mappings with "labels" (or "targets") and perhaps
            "id"; a DataLoader (its own batch size and order are kept); or `Batches`.
        batch_size: Examples a batch.
        shuffle: A new order each epoch, a function of (seed, epoch).
        seed: Seed of the order.

    Returns:
        Batches with `n`, stable ids (the position in the data unless the data bring their own), and `take`.
    """
    if isinstance(data, Batches):
        return data
    if isinstance(data, DataLoader):
        n = len(data.dataset)  # type: ignore[arg-type]
        require(n > 0, "data", "at least one example", "an empty loader")
        ordered = not isinstance(data.sampler, RandomSampler)
        return Batches(data, n, data.batch_size or 1, False, seed, ordered or _brings_ids(data.dataset[0]))
    if isinstance(data, (tuple, list)) and len(data) in (2, 3) and all(_is_column(part) for part in data):
        source = tuple(_as_tensor(part) for part in data)
        n = len(source[1])
        require(n > 0, "data", "at least one example", "none")
        first = next(iter(source[0].values())) if isinstance(source[0], Mapping) else source[0]
        require(len(first) == n, "inputs and targets", f"the same number of examples ({n})", len(first))
        return Batches(source, n, batch_size, shuffle, seed, True)
    if isinstance(data, (Dataset, Sequence)):
        n = len(data)  # type: ignore[arg-type]
        require(n > 0, "data", "at least one example", "an empty data set")
        return Batches(data, n, batch_size, shuffle, seed, True)
    raise expected("data", "(inputs, targets), a Dataset or a DataLoader", type(data).__name__)


_TARGET_NAMES = ("labels", "label", "targets", "target")
_ID_NAMES = ("id", "ids")


def _brings_ids(item: Any) -> bool:
    if isinstance(item, Mapping):
        return any(name in item for name in _ID_NAMES)
    return isinstance(item, (tuple, list)) and len(item) == 3


def _unpack(item: Any, positions: Tensor | None) -> Batch:
    """A collated item as a Batch; without ids of its own, the positions stand in (or nothing, yet)."""
    default = positions if positions is not None else torch.empty(0, dtype=torch.int64)
    if isinstance(item, Batch):
        return item
    if isinstance(item, Mapping):
        target = next((name for name in _TARGET_NAMES if name in item), None)
        if target is None:
            raise expected("batch", f"a key among {_TARGET_NAMES}", sorted(item))
        id_name = next((name for name in _ID_NAMES if name in item), None)
        inputs = {k: v for k, v in item.items() if k not in (target, id_name)}
        return Batch(inputs, item[target], item[id_name] if id_name else default)
    if isinstance(item, (tuple, list)) and len(item) in (2, 3):
        return Batch(item[0], item[1], item[2] if len(item) == 3 else default)
    raise InvalidInput(f"batch: expected (inputs, targets) or a mapping with labels, got {type(item).__name__}")


def _is_column(part: Any) -> bool:
    if isinstance(part, Mapping):
        return all(_is_column(value) for value in part.values())
    return isinstance(part, (Tensor, np.ndarray))


def _as_tensor(part: Any) -> Any:
    if isinstance(part, Mapping):
        return {name: _as_tensor(value) for name, value in part.items()}
    return part if isinstance(part, Tensor) else torch.as_tensor(part)


def _index(part: Any, positions: Tensor) -> Any:
    if isinstance(part, Mapping):
        return {name: _index(value, positions) for name, value in part.items()}
    return part[positions]
