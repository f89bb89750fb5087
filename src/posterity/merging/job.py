"""What is to be merged: sources, weights and the method, checked as a whole before any work."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from posterity.checkpoints import Checkpoint, StoredTensor, open_checkpoint
from posterity.errors import InvalidInput, RefusedFile, expected, require, require_positive
from posterity.merging._method import Chunk, Method, check_named
from posterity.merging._prefetch import prefetched
from posterity.merging.methods import parameter_number
from posterity.trees import state_dtype

CHUNK = 1 << 19  # elements of a file in memory at a time, at most: enough to outweigh the calls
ROOM = 3 * CHUNK  # elements of all files, and of what a method keeps beside them, in memory at a time


@dataclass(frozen=True)
class MergeSource:
    """A model on disk.

    Args:
        path: Its folder or file.
        weight: α, how much of it goes into the merge; negative to remove it.
        curvature: A checkpoint with the mean curvature H of each parameter over the data (or Gram matrices).
        n: Number of examples N behind the curvature; by default the number in its file, or 1.
    """

    path: Path
    weight: float = 1.0
    curvature: Path | None = None
    n: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))  # which may be written as text

    def examples(self, curvature: Checkpoint) -> float:
        """N."""
        if self.n is not None:
            return self.n
        told = curvature.metadata.get("examples", "1")
        try:
            n = float(told)
            require_positive("examples", n)
        except ValueError:
            raise RefusedFile(f"{curvature.path}: expected a number of examples in its header, got {told!r}") from None
        return n


@dataclass(frozen=True)
class Job:
    """A merge of checkpoints.

    Args:
        models: The models, by name.
        method: The method with its options.
        base: What they were fine-tuned from.
        prior_precision: δ₀ of gradient matching.
        temperature: Divides every curvature N H; a large one turns gradient matching into task arithmetic.
        shard_size: Bytes in one file of the result, at most.
    """

    models: Mapping[str, MergeSource]
    method: Method
    base: MergeSource | None = None
    prior_precision: float = 1e-12
    temperature: float = 1.0
    shard_size: int = 5 * 10**9

    def __post_init__(self) -> None:
        method = self.method
        check_named("models", self.models, MergeSource)
        require(self.base is None or isinstance(self.base, MergeSource), "base", "a MergeSource", self.base)
        require(isinstance(method, Method), "method", "a Method such as Linear()", method)
        method.check([source.weight for source in self.models.values()])
        method.check_base(self.base is not None)
        for name, source in [*self.models.items(), ("base", self.base)]:
            if source is not None and source.n is not None:
                require_positive(f"n of {name!r}", source.n)
        for name, source in self.models.items():
            given = source.curvature is not None
            wanted = f"a file, for {method.name!r} (`posterity curvature` writes one)"
            require(given or not method.needs_curvature, f"curvature of {name!r}", wanted, None)
        require(0 <= self.prior_precision < math.inf, "prior_precision", "a number >= 0", self.prior_precision)
        require_positive("temperature", self.temperature)
        require_positive("shard_size", self.shard_size)


@dataclass
class Opened:
    """A job with its files open and checked to fit together."""

    job: Job
    models: list[Checkpoint]
    base: Checkpoint | None
    curvatures: list[Checkpoint] = field(default_factory=list)
    base_curvature: Checkpoint | None = None

    @property
    def like(self) -> Checkpoint:
        """The checkpoint that sets names, shapes and dtypes."""
        return self.base or self.models[0]

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """Everything that is read."""
        every = [self.base, *self.models, self.base_curvature, *self.curvatures]
        return [checkpoint for checkpoint in every if checkpoint is not None]

    @property
    def chunk_size(self) -> int:
        """Elements of each file in memory at a time."""
        return min(CHUNK, ROOM // (len(self.checkpoints) + self.job.method.beside))

    @property
    def known(self) -> Iterator[tuple[str, MergeSource, Checkpoint]]:
        """Every curvature that is read, with whose it is."""
        for (name, source), curvature in zip(self.job.models.items(), self.curvatures, strict=False):
            yield name, source, curvature
        if self.job.base is not None and self.base_curvature is not None:
            yield "the base", self.job.base, self.base_curvature

    def reads(self, name: str) -> Iterator[Callable[[], Chunk]]:
        """One tensor, a chunk at a time, each read when it is called."""
        entry = self.like.entries[name]
        step = entry.count if self.job.method.scope == "whole" else self.chunk_size
        for start in range(0, entry.count, max(step, 1)):
            yield partial(self._chunk, name, entry, start, min(step, entry.count - start))

    def chunks(self, name: str) -> Iterator[Chunk]:
        """One tensor, a chunk at a time, read ahead of its use."""
        return prefetched(self.reads(name), threads=1)

    def _chunk(self, name: str, entry: StoredTensor, start: int, count: int) -> Chunk:
        dtype, sources = state_dtype(entry.dtype), list(self.job.models.values())
        shape = entry.shape if self.job.method.scope == "whole" else (count,)

        def numbers(checkpoint: Checkpoint) -> Tensor:
            return checkpoint.read(name, start, count).to(dtype).reshape(shape)

        def curvature(checkpoint: Checkpoint, source: MergeSource) -> Tensor:
            found = checkpoint.find(name)
            if found is None:
                return torch.zeros(count, dtype=dtype)
            if self.job.method.scope == "whole":  # Gram matrices have shapes of their own
                H = checkpoint.read(name, 0, found.count).to(dtype).reshape(found.shape)
            else:
                H = numbers(checkpoint)
            return H.mul_(source.examples(checkpoint) / self.job.temperature)

        known = self.job.method.scope != "whole" or all(c.find(name) for c in self.curvatures)
        precision = torch.full((), self.job.prior_precision, dtype=dtype)
        if self.base_curvature is not None and self.job.base is not None:
            precision = precision + curvature(self.base_curvature, self.job.base)
        return Chunk(
            [numbers(model) for model in self.models],
            [source.weight for source in sources],
            None if self.base is None else numbers(self.base),
            [curvature(c, s) for c, s in zip(self.curvatures, sources, strict=False)] if known else (),
            precision,
            parameter_number(name),
            start,
        )


def open_job(job: Job) -> Opened:
    """Open every file of a job; names and shapes that do not fit are listed, all of them, before any work."""
    wanted = [s.curvature for s in job.models.values() if s.curvature and job.method.needs_curvature]
    base_curvature = job.base.curvature if job.base and job.method.needs_curvature else None
    opened = Opened(
        job,
        [open_checkpoint(source.path) for source in job.models.values()],
        open_checkpoint(job.base.path) if job.base else None,
        [open_checkpoint(path) for path in wanted],
        open_checkpoint(base_curvature) if base_curvature else None,
    )
    problems = [
        line for name, m in zip(job.models, opened.models, strict=True) for line in _misfits(name, m, opened.like)
    ]
    for label, source, curvature in opened.known:
        source.examples(curvature)  # refuses a file that cannot tell
        problems += _misfits(f"curvature of {label}", curvature, opened.like, job.method)
    if problems:
        shown = "\n  ".join(problems[:50] + ([f"... and {len(problems) - 50} more"] if len(problems) > 50 else []))
        raise InvalidInput(f"models: expected the names and shapes of {opened.like.path}, got\n  {shown}")
    if not any(entry.dtype.is_floating_point for entry in opened.like.entries.values()):
        raise expected("models", "floating-point tensors to merge", "none")
    return opened


def _misfits(label: str, other: Checkpoint, like: Checkpoint, method: Method | None = None) -> Iterator[str]:
    """What keeps a checkpoint, or the curvature that a method uses, from being merged, line by line."""
    for name, entry in like.entries.items():
        found = other.find(name)
        shape = entry.shape if method is None else method.curvature_shape(entry.shape)
        if found is None and method is None:
            yield f"{label}: {name} is missing"
        elif found is not None and found.shape != shape:
            yield f"{label}: {name} has shape {list(found.shape)} instead of {list(shape)}"
        elif found is not None and found.dtype.is_floating_point != entry.dtype.is_floating_point:
            yield f"{label}: {name} holds {found.dtype} instead of {entry.dtype}"
    if method is None:
        for name, stored in like.aliases.items():
            if name in other.entries and not _same(other, name, stored):
                yield f"{label}: {name} is not tied to {stored}, and there is one place for both"
    elif method.scope == "whole":
        return  # Gram matrices of tied layers have names of their own
    for name in other.entries:
        if not any(like.find(known) for known in other.names_of(name)):
            yield f"{label}: {name} is not in the others"


def _same(checkpoint: Checkpoint, name: str, other: str) -> bool:
    """Whether two names have the same numbers."""
    entry = checkpoint.find(name)
    if entry is None or entry != checkpoint.find(other):
        return False
    pieces = ((start, min(CHUNK, entry.count - start)) for start in range(0, entry.count, CHUNK))
    return all(torch.equal(checkpoint.read(name, *piece), checkpoint.read(other, *piece)) for piece in pieces)
