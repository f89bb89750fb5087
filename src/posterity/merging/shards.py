"""Shards of a checkpoint: which tensor goes where, and a writer that puts the header first and tensors piecewise."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from posterity.checkpoints import StoredTensor
from posterity.files import DTYPES, atomic, write_json


@dataclass(frozen=True)
class Shard:
    """A safetensors file to be written, with tensors in the order of their bytes."""

    file: str
    entries: dict[str, StoredTensor]
    metadata: dict[str, str]

    @property
    def header(self) -> bytes:
        """Everything in front of the tensors."""
        listed: dict[str, object] = {"__metadata__": self.metadata}
        offset = 0
        for name, entry in self.entries.items():
            offsets = [offset, offset + entry.size]
            listed[name] = {"dtype": DTYPES[entry.dtype], "shape": list(entry.shape), "data_offsets": offsets}
            offset += entry.size
        encoded = json.dumps(listed, separators=(",", ":")).encode()
        encoded += b" " * (-len(encoded) % 8)
        return struct.pack("<Q", len(encoded)) + encoded

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return len(self.header) + sum(entry.size for entry in self.entries.values())


def plan_shards(
    entries: Mapping[str, StoredTensor], limit: int, metadata: Mapping[str, str], stem: str = "model"
) -> list[Shard]:
    """Cut a checkpoint, in the order of names, into files of at most `limit` bytes (or one tensor)."""
    groups: list[dict[str, StoredTensor]] = [{}]
    filled = 0
    for name in sorted(entries):
        if groups[-1] and filled + entries[name].size > limit:
            groups.append({})
            filled = 0
        groups[-1][name] = entries[name]
        filled += entries[name].size
    files = [f"{stem}-{i + 1:05d}-of-{len(groups):05d}.safetensors" for i in range(len(groups))]
    files = files if len(groups) > 1 else [f"{stem}.safetensors"]
    return [Shard(file, _aligned(group), dict(metadata)) for file, group in zip(files, groups, strict=True)]


def write_shards(folder: Path, shards: Iterable[tuple[Shard, Iterable[Tensor]]]) -> None:
    """Write each shard atomically from its tensors' pieces, in the order of its entries; one piece in memory at a time.

    While the disk takes in one shard, the next is being written.
    """
    with ThreadPoolExecutor(1) as disk:
        before: Future[None] | None = None
        for shard, pieces in shards:
            with ExitStack() as stack:
                file = stack.enter_context(atomic(folder / shard.file))
                file.write(shard.header)
                for piece in pieces:
                    file.write(piece.reshape(-1).view(torch.uint8).numpy().data)
                if before is not None:
                    before.result()
                before = disk.submit(stack.pop_all().close)
        if before is not None:
            before.result()


def write_index(folder: Path, shards: list[Shard], stem: str = "model") -> None:
    """Write the index from tensors to shards, where there are several."""
    if len(shards) == 1:
        return
    places = {name: shard.file for shard in shards for name in shard.entries}
    total = sum(entry.size for shard in shards for entry in shard.entries.values())
    content = {"metadata": {"total_size": total}, "weight_map": places}
    write_json(folder / f"{stem}.safetensors.index.json", content)


def _aligned(entries: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Wide dtypes first, which keeps every tensor aligned to its own size."""
    return dict(sorted(entries.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])))
