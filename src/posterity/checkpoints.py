"""Checkpoints on disk, read a piece at a time: safetensors, sharded or not, and torch state dicts in safe mode."""

from __future__ import annotations

import json
import math
import struct
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posterity.errors import RefusedFile
from posterity.files import DTYPES, HEADER_LIMIT, TENSOR_LIMIT, read_json

_NAMED = {code: dtype for dtype, code in DTYPES.items()}
STATE_DICTS = (".bin", ".pt", ".pth")
PEFT_PREFIX = "base_model.model."  # what PEFT puts before the names of the model that it wraps


@dataclass(frozen=True)
class StoredTensor:
    """One stored tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """Number of bytes."""
        return self.count * self.dtype.itemsize


class Checkpoint(ABC):
    """Named tensors on disk.

    Attributes:
        path: The folder or file it was opened from.
        files: The files that hold the tensors.
        entries: What is stored, by name.
        aliases: Names that are tied to a stored tensor, and its name.
        metadata: Free text that came with the tensors.
    """

    path: Path
    files: list[Path]
    entries: dict[str, StoredTensor]
    aliases: dict[str, str]
    metadata: dict[str, str]

    @abstractmethod
    def read(self, name: str, start: int, count: int) -> Tensor:
        """Elements start .. start + count − 1 of a stored or tied tensor, flat."""

    def find(self, name: str) -> StoredTensor | None:
        """The entry under a name, stored or tied."""
        return self.entries.get(self.aliases.get(name, name))

    def names_of(self, name: str) -> set[str]:
        """All names of one stored tensor."""
        return {name} | {alias for alias, stored in self.aliases.items() if stored == name}


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a safetensors file, a state dict, or a folder that holds one of them or shards with an index."""
    path = Path(path)
    if path.is_dir():
        return _open_folder(path)
    if not path.is_file():
        raise RefusedFile(
            f"{path}: expected a checkpoint, got no such file or folder; a model of a hub has to be downloaded first"
        )
    if path.suffix == ".safetensors":
        return Safetensors(path, [path])
    if path.suffix in STATE_DICTS:
        return StateDict(path, path)
    raise RefusedFile(f"{path}: expected a folder, .safetensors or one of {STATE_DICTS}, got {path.suffix!r}")


def _open_folder(path: Path) -> Checkpoint:
    indices = sorted(path.glob("*.safetensors.index.json"))
    files = sorted(path.glob("*.safetensors"))
    dicts = sorted(file for suffix in STATE_DICTS for file in path.glob(f"*model*{suffix}"))
    if len(indices) == 1:
        return _open_shards(path, indices[0])
    if not indices and len(files) == 1:
        return Safetensors(path, files)
    if not indices and not files and len(dicts) == 1:
        return StateDict(path, dicts[0])
    found = [file.name for file in (*indices, *files, *dicts)]
    raise RefusedFile(f"{path}: expected one checkpoint (one file, or shards with one index), got {found or 'none'}")


def _open_shards(folder: Path, index: Path) -> Checkpoint:
    content = read_json(index)
    listed = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(listed, dict) or not all(isinstance(shard, str) for shard in listed.values()):
        raise RefusedFile(f"{index}: expected a weight_map from tensors to files, got none")
    shards = sorted(set(listed.values()))
    for shard in shards:
        if Path(shard).name != shard or not (folder / shard).is_file():
            raise RefusedFile(f"{index}: expected shards that lie beside it, got {shard!r}")
    checkpoint = Safetensors(folder, [folder / shard for shard in shards])
    for name, shard in listed.items():
        found = checkpoint.places.get(name)
        if found is None or found[0].name != shard:
            raise RefusedFile(f"{index}: expected {name!r} in {shard}, got it in {found and found[0].name}")
    for name in checkpoint.entries.keys() - listed.keys():
        raise RefusedFile(f"{index}: expected every tensor in the weight_map, got {name!r} in a shard only")
    return checkpoint


class Safetensors(Checkpoint):
    """One or several safetensors files; headers are read and checked at once, tensors when asked for."""

    def __init__(self, path: Path, files: list[Path]) -> None:
        self.path, self.files = path, files
        self.entries, self.metadata = {}, {}
        self.places: dict[str, tuple[Path, int]] = {}  # where the bytes of each tensor begin
        for file in files:
            self._read_header(file)
        self.aliases = {a: name for a, name in self.metadata.items() if name in self.entries and a not in self.entries}

    def _read_header(self, file: Path) -> None:
        header, begin = _header(file)
        self.metadata.update(header.pop("__metadata__", {}))
        end = 0
        for name, told in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            if name in self.entries:
                raise RefusedFile(f"{file}: expected each tensor once, got {name!r} in {self.places[name][0].name} too")
            if told["dtype"] not in _NAMED:
                raise RefusedFile(f"{file}: expected a dtype among {sorted(_NAMED)} for {name!r}, got {told['dtype']}")
            entry = StoredTensor(_NAMED[told["dtype"]], tuple(told["shape"]))
            if told["data_offsets"] != [end, end + entry.size]:
                raise RefusedFile(
                    f"{file}: expected {name!r} at {[end, end + entry.size]}, got {told['data_offsets']}; "
                    "the file is damaged"
                )
            self.entries[name], self.places[name] = entry, (file, begin + end)
            end += entry.size
        if file.stat().st_size != begin + end:
            raise RefusedFile(f"{file}: expected {begin + end} bytes, got {file.stat().st_size}; the file is damaged")

    def read(self, name: str, start: int, count: int) -> Tensor:
        stored = self.aliases.get(name, name)
        path, begin = self.places[stored]
        dtype = self.entries[stored].dtype
        target = torch.empty(count, dtype=dtype)
        with open(path, "rb") as file:
            file.seek(begin + start * dtype.itemsize)
            filled = file.readinto(target.view(torch.uint8).numpy().data)
        if filled != count * dtype.itemsize:
            raise RefusedFile(f"{path}: expected {count} more elements of {name!r}, got the end of the file")
        return target


class StateDict(Checkpoint):
    """A torch state dict, memory-mapped; only tensors and plain containers are ever unpickled."""

    def __init__(self, path: Path, file: Path) -> None:
        self.path, self.files, self.metadata = path, [file], {}
        self._tensors = _load(file)
        self.entries, self.aliases = {}, {}
        seen: dict[tuple[Any, ...], str] = {}
        for name, t in self._tensors.items():
            if t.dtype not in DTYPES:
                raise RefusedFile(f"{file}: expected a dtype among {sorted(_NAMED)} for {name!r}, got {t.dtype}")
            first = seen.setdefault((t.data_ptr(), t.shape, t.stride(), t.dtype) if t.numel() else (name,), name)
            if first == name:
                self.entries[name] = StoredTensor(t.dtype, tuple(t.shape))
            else:
                self.aliases[name] = first

    def read(self, name: str, start: int, count: int) -> Tensor:
        return self._tensors[name].reshape(-1)[start : start + count].clone()


def _load(file: Path) -> Mapping[str, Tensor]:
    try:
        # Files in torch's format of before 2020 cannot be mapped; they are read whole.
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except Exception as error:  # whatever the reader stumbles over, the file is not what it should be
        raise RefusedFile(f"{file}: expected a state dict of tensors only, got {error}") from None
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    if not isinstance(content, Mapping) or not all(isinstance(t, Tensor) for t in content.values()):
        raise RefusedFile(f"{file}: expected a state dict of tensors only, got {type(content).__name__}")
    return content


def _header(file: Path) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file, checked for form, and where its tensors begin."""
    size = file.stat().st_size
    with open(file, "rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= min(HEADER_LIMIT, size - 8):
            raise RefusedFile(f"{file}: expected a safetensors file, got {size} bytes with a header of {length}")
        text = stream.read(length)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = dict(pairs)
        if len(names) < len(pairs):
            raise ValueError("the same name twice")
        return names

    try:
        header = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise RefusedFile(f"{file}: expected a header in JSON, got {error}") from None
    if not isinstance(header, dict) or len(header) > TENSOR_LIMIT or not all(map(_is_entry, header.items())):
        raise RefusedFile(f"{file}: expected dtype, shape and data_offsets of each tensor, got another header")
    return header, 8 + length


def _is_entry(item: tuple[str, Any]) -> bool:
    name, told = item
    if not isinstance(told, dict):
        return False
    if name == "__metadata__":
        return all(isinstance(value, str) for value in told.values())
    shape, offsets = told.get("shape"), told.get("data_offsets")
    whole = all(isinstance(x, list) and all(type(n) is int and n >= 0 for n in x) for x in (shape, offsets))
    return whole and len(offsets) == 2 and isinstance(told.get("dtype"), str)  # type: ignore[arg-type]
