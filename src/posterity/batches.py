"""Anything with inputs, targets and ids, as batches with ids and a known N."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler, default_collate

from posterity import distributed
from posterity.errors import InvalidInput, expected, require, require_whole
from posterity.inputs import Inputs, concatenate, move, over_tensors, plain, take, tensors
from posterity.noise import own_seed

Array = Tensor | np.ndarray[Any, Any]


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

    def take(self, rows: Tensor) -> Batch:
        """The examples in some rows."""
        return Batch(take(self.inputs, rows), take(self.targets, rows), take(self.ids, rows))

    @staticmethod
    def concatenate(parts: Sequence[Batch]) -> Batch:
        """Batches one after the other, as one."""
        targets, ids = torch.cat([part.targets for part in parts]), torch.cat([part.ids for part in parts])
        return Batch(concatenate([part.inputs for part in parts]), targets, ids)


@dataclass(frozen=True)
class Batches:
    """Batches over a finite data set: iterate as often as you like; `n` examples in `len` batches.

    Shuffling is a function of (seed, epoch): `epoch(k)` gives the batches of epoch k, the same every time. Shuffled
    batches, which are those of training, differ in size by one example at most: a last batch of a few examples would
    move the weights as far as a whole one.
    """

    source: Any
    n: int
    batch_size: int
    shuffle: bool
    seed: int
    ids_known: bool
    rows: Tensor | None = None  # positions of the examples, where they are not all of the source

    def __len__(self) -> int:
        if isinstance(self.source, DataLoader):
            return len(self.source)
        return -(-self.n // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        return self.epoch(0)

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of one epoch; with `shuffle`, in the order that belongs to (seed, number)."""
        if isinstance(self.source, DataLoader):
            return _unpacked(self.source)
        return map(self.take, self._order(number))

    def steps(self, number: int, together: int = 1) -> Iterator[list[Batch]]:
        """The batches of one epoch, up to `together` of them behind each step, and about as many behind every step."""
        if not isinstance(self.source, DataLoader) and self.shuffle:
            whole = replace(self, batch_size=self.batch_size * together)
            for rows in whole._order(number):
                parts = rows.tensor_split(-(-len(rows) // self.batch_size)) if together > 1 else (rows,)
                yield [self.take(part) for part in parts]
            return
        stream, count = self.epoch(number), len(self)
        for numbers in torch.arange(count).tensor_split(-(-count // together)):
            if group := list(islice(stream, len(numbers))):
                yield group

    @property
    def brings_ids(self) -> bool:
        """Whether the examples have ids of their own; otherwise their positions are used."""
        if isinstance(self.source, tuple):
            return len(self.source) == 3
        data = self.source.dataset if isinstance(self.source, DataLoader) else self.source
        return not isinstance(data, IterableDataset) and _brings_ids(data[0])

    @property
    def has_positions(self) -> bool:
        """Whether examples can be taken by their positions."""
        return not isinstance(self.source, DataLoader)

    def only(self, rows: Tensor) -> Batches:
        """The examples at these positions alone; their ids stay."""
        require(self.has_positions, "data", "examples that can be taken one by one", "a DataLoader")
        return replace(self, rows=rows if self.rows is None else self.rows[rows], n=len(rows))

    @property
    def keeps_order(self) -> bool:
        """Whether every pass reads the examples by their positions, as `take` does."""
        return _in_order(self.source) if isinstance(self.source, DataLoader) else not self.shuffle

    @property
    def generator(self) -> torch.Generator | None:
        """A loader's own source of randomness, where it has one."""
        if not isinstance(self.source, DataLoader):
            return None
        return self.source.generator or getattr(self.source.sampler, "generator", None)

    def _order(self, epoch: int) -> tuple[Tensor, ...]:
        """The positions in each batch of an epoch."""
        if self.shuffle:
            generator = torch.Generator().manual_seed(own_seed(self.seed, epoch))
            return torch.randperm(self.n, generator=generator).tensor_split(len(self))
        return torch.arange(self.n).split(self.batch_size)

    def some(self, numbers: range) -> Iterator[Batch]:
        """Consecutive batches of epoch 0, of which no others are read."""
        if not isinstance(self.source, DataLoader):
            yield from map(self.take, self._order(0)[numbers.start : numbers.stop])
            return
        loader = some_of(self.source, numbers)
        assert isinstance(loader.batch_sampler, list)
        for positions, item in zip(loader.batch_sampler, loader, strict=True):
            yield _unpack(item, torch.tensor(positions))

    def take(self, positions: Tensor) -> Batch:
        """The examples at these positions, as one batch."""
        if isinstance(self.source, DataLoader):
            return _unpack(self.source.collate_fn([self.source.dataset[int(i)] for i in positions]), positions)
        positions = positions if self.rows is None else self.rows[positions]
        if isinstance(self.source, tuple):
            inputs = take(self.source[0], positions)
            ids = self.source[2][positions] if len(self.source) == 3 else positions
            return Batch(inputs, self.source[1][positions], ids)
        return _unpack(_collated([self.source[int(i)] for i in positions]), positions)


def _collated(examples: list[Any]) -> Any:
    try:
        return default_collate(examples)
    except TypeError as error:  # lists of rows and of labels, say, look like two examples
        raise InvalidInput(
            f"data: expected examples that can be stacked, or tensors (inputs, targets), got {error}"
        ) from error


def batches_of(what: str, data: Any, batch_size: int) -> Batches:
    """Batches of another argument than `data`, which errors name."""
    try:
        return batches(data, batch_size=batch_size)
    except InvalidInput as why:
        raise InvalidInput(str(why).replace("data:", f"{what}:", 1)) from why


def batches(data: Any, *, batch_size: int = 256, shuffle: bool = False, seed: int = 0) -> Batches:
    """Batches of anything that holds examples.

    Args:
        data: `(inputs, targets)` or `(inputs, targets, ids)` of tensors or arrays (inputs may be a mapping or a tuple
            of them); a map-style Dataset of such tuples or of mappings with "labels" (or "targets") and perhaps
            "id"; a DataLoader (its own batch size, order and collation are kept); or `Batches` (unchanged).
        batch_size: Examples a batch.
        shuffle: A new order each epoch, a function of (seed, epoch).
        seed: Seed of the order.

    Returns:
        Batches with `n`, stable ids (the position in the data unless the data bring their own), and `take`.
    """
    if isinstance(data, Batches):
        return data
    require_whole("batch_size", batch_size)
    batch_size = int(batch_size)  # torch does not split by numpy's integers
    if isinstance(data, DataLoader):
        return _of_loader(data, seed)
    if _is_columns(data):
        source = _columns(data)
        return Batches(source, len(source[1]), batch_size, shuffle, seed, True)
    if isinstance(data, (Dataset, Sequence)):
        n = _length(data)
        require(not isinstance(data, IterableDataset), "data", "a DataLoader around a stream", type(data).__name__)
        if isinstance(data, (list, tuple)) and all(map(_looks_collated, data)):
            raise expected("data", "examples, or a DataLoader (a Dataset for sequences)", f"a list of {n} batches")
        examples = list(data) if isinstance(data, tuple) else data  # a tuple is columns to `take`
        return Batches(examples, n, batch_size, shuffle, seed, True)
    raise expected("data", "(inputs, targets), a Dataset or a DataLoader", type(data).__name__)


def in_order(data: Any, batch_size: int = 256) -> Batches:
    """Batches in the order of the data, or an error if their examples cannot be identified."""
    stream = batches(data, batch_size=batch_size)
    require(stream.ids_known, "data", "ids with every example, or a loader that keeps the order", "a shuffled loader")
    return replace(stream, shuffle=False)


def _of_loader(loader: DataLoader[Any], seed: int) -> Batches:
    n = _length(loader.dataset)
    sampler = loader.batch_sampler
    if sampler is None:
        raise expected("data", "a DataLoader that makes batches", "one with batch_size=None")
    # Positions are ids only where batches come in the order of the data; anything else must bring its ids.
    found = Batches(loader, n, loader.batch_size or 1, False, seed, ids_known=_in_order(loader))
    return found if found.ids_known else replace(found, ids_known=found.brings_ids)


def _in_order(loader: DataLoader[Any]) -> bool:
    sampler = loader.batch_sampler
    return type(sampler) is BatchSampler and isinstance(sampler.sampler, SequentialSampler)


def some_of(loader: DataLoader[Any], numbers: range) -> DataLoader[Any]:
    """A loader of some consecutive batches of another, which has to keep the order of the data."""
    require(_in_order(loader), "data shared between processes", "a fixed order", "a loader that shuffles or samples")
    return DataLoader(
        loader.dataset,
        batch_sampler=list(loader.batch_sampler or ())[numbers.start : numbers.stop],
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        worker_init_fn=loader.worker_init_fn,
    )


@dataclass(frozen=True)
class OwnPart:
    """The batches that fall to this process: all of them, unless processes share their passes over data.

    Args:
        data: All batches, collated as those of a loader.
    """

    data: Iterable[Any]

    def __len__(self) -> int:
        return len(self._numbers) if not distributed.alone() else len(self.data)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Batch]:
        if isinstance(self.data, Batches):
            return iter(self.data) if distributed.alone() else self.data.some(self._numbers)
        every = _unpacked(self.data)
        return every if distributed.alone() else islice(every, self._numbers.start, self._numbers.stop)

    @property
    def first(self) -> int:
        """The number of the first of them."""
        return 0 if distributed.alone() else self._numbers.start

    @property
    def _numbers(self) -> range:
        if not isinstance(self.data, Sized):
            raise expected("data shared between processes", "a known number of batches", type(self.data).__name__)
        return distributed.part(len(self.data))


def _length(data: Any) -> int:
    """Number of examples; data without a length, or without examples, are refused."""
    try:
        n = len(data)
    except TypeError:
        raise expected("data", "a data set with a length (N has to be known)", type(data).__name__) from None
    require(n > 0, "data", "at least one example", "none")
    return n


def _is_columns(data: Any) -> bool:
    """Whether these are whole columns, not a list of two or three examples."""
    if not isinstance(data, (tuple, list)) or len(data) not in (2, 3):
        return False
    if isinstance(data[0], tuple):  # of two examples, the second is a tuple too
        return all(map(_is_column, data[0])) and _is_column(data[1])
    return _is_column(data[0]) and not (isinstance(data, list) and isinstance(data[0], Mapping))


def _looks_collated(item: Any) -> bool:
    """Whether inputs (B, ...) come with a target for each of several rows: a batch, not an example."""
    if not isinstance(item, (list, tuple)) or len(item) < 2 or not all(isinstance(part, Tensor) for part in item[:2]):
        return False
    x, y = item[:2]
    if x.ndim < 2 or y.ndim not in (1, 2) or not len(x) == len(y) > 1:
        return False
    return x.ndim != 3 if y.is_floating_point() else y.ndim == 1  # a picture of 3 channels may have 3 numbers


def _columns(data: Sequence[Any]) -> tuple[Any, ...]:
    """Inputs, targets and perhaps ids as tensors, checked to have the same number of rows."""
    for part in data[1:]:
        require(_is_column(part), "targets and ids", "tensors or arrays, like the inputs", type(part).__name__)
    columns = tuple(over_tensors(plain, as_tensor(part)) for part in data)
    columns = columns[0], _labels(columns[1]), *columns[2:]
    n = _length(columns[1])
    for column in (*tensors(columns[0]), *columns[2:]):
        found = _length(column)
        require(found == n, "inputs, targets and ids", f"{n} examples each", found)
    if len(columns) == 3:
        _ids(columns[2])
    return columns


_NO_LABELS = (torch.uint16, torch.uint32, torch.uint64)
_TARGET_NAMES = ("labels", "label", "targets", "target")
_ID_NAMES = ("id", "ids")


def _brings_ids(item: Any) -> bool:
    if isinstance(item, Mapping):
        return any(name in item for name in _ID_NAMES)
    return isinstance(item, (tuple, list)) and len(item) == 3


def _unpacked(items: Iterable[Any]) -> Iterator[Batch]:
    """Collated items as batches; examples without ids of their own are numbered as they come."""
    seen = 0
    for item in items:
        batch = _unpack(item, None)
        count = len(batch.targets)
        yield batch if len(batch.ids) else replace(batch, ids=torch.arange(seen, seen + count))
        seen += count


def _unpack(item: Any, positions: Tensor | None) -> Batch:
    """A collated item as a Batch; without ids, the positions are used (or nothing, yet)."""
    default = positions if positions is not None else torch.empty(0, dtype=torch.int64)
    if isinstance(item, Batch):
        return item
    if isinstance(item, Mapping):
        target = next((name for name in _TARGET_NAMES if name in item), None)
        if target is None:
            raise expected("batch", f"a key among {_TARGET_NAMES}", sorted(item))
        id_name = next((name for name in _ID_NAMES if name in item), None)
        inputs = {k: v for k, v in item.items() if k not in (target, id_name)}
        return Batch(inputs, _labels(item[target]), _ids(item[id_name]) if id_name else default)
    if isinstance(item, (tuple, list)) and len(item) in (2, 3):
        return Batch(item[0], _labels(item[1]), _ids(item[2]) if len(item) == 3 else default)
    raise InvalidInput(f"batch: expected (inputs, targets) or a mapping with labels, got {type(item).__name__}")


def _labels(targets: Any) -> Any:
    """Large unsigned integers as those that torch can add to others."""
    return targets.long() if isinstance(targets, Tensor) and targets.dtype in _NO_LABELS else targets


def _ids(ids: Any) -> Tensor:
    integers = isinstance(ids, Tensor) and ids.ndim == 1 and not ids.is_floating_point() and ids.dtype != torch.bool
    require(integers, "ids", "an integer for each example", ids)
    return ids


def inputs_of(item: Any) -> Inputs:
    """The inputs of a collated item, whether targets and ids come with them or not."""
    if isinstance(item, Batch):
        return item.inputs
    if isinstance(item, Mapping):
        return {name: value for name, value in item.items() if name not in (*_TARGET_NAMES, *_ID_NAMES)}
    return item[0] if isinstance(item, (tuple, list)) and item else item


def _is_column(part: Any) -> bool:
    if isinstance(part, Mapping):
        return len(part) > 0 and all(_is_column(value) for value in part.values())
    return isinstance(part, Tensor) or hasattr(part, "__array__")


def as_tensor(part: Any) -> Any:
    """An array, or a mapping or tuple of arrays, as tensors."""
    if isinstance(part, Mapping):
        return {name: as_tensor(value) for name, value in part.items()}
    return tuple(map(as_tensor, part)) if isinstance(part, tuple) else one_tensor(part)


def one_tensor(part: Any) -> Tensor:
    """An array, or lists of numbers in double precision, as a tensor.

    Examples:
        >>> one_tensor([1, 0.1])
        tensor([1.0000, 0.1000], dtype=torch.float64)
    """
    if isinstance(part, Tensor):
        return part
    array = np.asarray(part)
    try:
        # torch neither writes to what is read-only nor walks backwards
        return torch.as_tensor(array if array.flags.writeable and min(array.strides, default=0) >= 0 else array.copy())
    except TypeError:
        raise expected("data", "arrays of numbers", f"an array of {array.dtype}") from None
