"""Reader of GGUF files: a header of facts, a list of tensors, and their blocks of quantised numbers.

A file is checked before anything of the size it names is made: lengths, counts and places must lie inside the file.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posterity.errors import RefusedFile

F32, Q4_1, Q8_0 = 0, 3, 8
_BYTES = {F32: (1, 4), Q4_1: (32, 20), Q8_0: (32, 34)}  # numbers in a block, and its bytes
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9
_DEPTH = 4  # lists within lists
_AXES = 8

Stored = tuple[int, tuple[int, ...], np.ndarray]  # type, shape, raw bytes


def read_gguf(path: Path) -> tuple[dict[str, Any], dict[str, Stored]]:
    """What a GGUF file says of itself, and (type, shape, raw bytes) of every tensor.

    Raises:
        RefusedFile: Where it is no GGUF file, is damaged, or holds types that are not read here.
    """
    return _File(path).read()


class _File:
    """A file that is read from the beginning; every length is held against what is left."""

    def __init__(self, path: Path) -> None:
        self.path, self.content, self.place = path, memoryview(path.read_bytes()), 0

    def read(self) -> tuple[dict[str, Any], dict[str, Stored]]:
        if bytes(self.bytes(4)) != b"GGUF":
            raise self.refused("another file")
        self.number("I")  # the version
        tensors, facts = self.count("Q"), self.count("Q")
        about = {self.text(): self.value(self.number("I"), _DEPTH) for _ in range(facts)}
        places = [self.tensor() for _ in range(tensors)]
        start = -(-self.place // 32) * 32
        return about, {name: (kind, shape, self.raw(kind, shape, start + at)) for name, kind, shape, at in places}

    def refused(self, got: str) -> RefusedFile:
        return RefusedFile(f"{self.path}: expected a whole GGUF file, got {got}")

    def bytes(self, count: int) -> memoryview:
        if count > len(self.content) - self.place:
            raise self.refused(f"{count} bytes at byte {self.place} of {len(self.content)}")
        self.place += count
        return self.content[self.place - count : self.place]

    def number(self, form: str) -> Any:
        return struct.unpack("<" + form, self.bytes(struct.calcsize("<" + form)))[0]

    def count(self, form: str) -> int:
        """How many things follow, each of which takes a byte at least."""
        found: int = self.number(form)
        if found > len(self.content) - self.place:
            raise self.refused(f"a count of {found} at byte {self.place} of {len(self.content)}")
        return found

    def text(self) -> str:
        try:
            return bytes(self.bytes(self.count("Q"))).decode()
        except UnicodeDecodeError as fault:
            raise self.refused("a text that is not UTF-8") from fault

    def value(self, kind: int, depth: int) -> Any:
        if kind == _TEXT:
            return self.text()
        if kind == _LIST and depth > 0:
            inner, count = self.number("I"), self.count("Q")
            return [self.value(inner, depth - 1) for _ in range(count)]
        if kind not in _SCALARS:
            raise self.refused(f"a value of type {kind}")
        return self.number(_SCALARS[kind])

    def tensor(self) -> tuple[str, int, tuple[int, ...], int]:
        """Name, type, shape and place of a tensor."""
        name, axes = self.text(), self.number("I")
        if axes > _AXES:
            raise self.refused(f"a tensor with {axes} axes")
        shape = tuple(self.number("Q") for _ in range(axes))[::-1]
        kind = self.number("I")
        if kind not in _BYTES or math.prod(shape) % _BYTES[kind][0]:
            raise self.refused(f"a tensor of type {kind} and shape {shape}")
        return name, kind, shape, self.number("Q")

    def raw(self, kind: int, shape: tuple[int, ...], place: int) -> np.ndarray:
        count, size = _BYTES[kind]
        self.place = min(place, len(self.content))
        return np.frombuffer(self.bytes(math.prod(shape) // count * size), np.uint8)


def dequantised(kind: int, shape: tuple[int, ...], raw: np.ndarray) -> Tensor:
    """The numbers of a tensor: Q4_1 is scale · nibble + minimum, low nibbles first; Q8_0 is scale · byte."""
    if kind == F32:
        return torch.from_numpy(raw.view(np.float32).copy()).reshape(shape)
    blocks = raw.reshape(-1, _BYTES[kind][1])
    scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    if kind == Q8_0:
        return torch.from_numpy(scale * blocks[:, 2:].view(np.int8)).reshape(shape)
    least = blocks[:, 2:4].copy().view(np.float16).astype(np.float32)
    nibbles = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], 1)
    return torch.from_numpy(scale * nibbles + least).reshape(shape)
