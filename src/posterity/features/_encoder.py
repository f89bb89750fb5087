"""What every frozen encoder is: items in, vectors out, and a fingerprint of its weights."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from posterity.files import sha256

Matrix = np.ndarray[Any, np.dtype[np.float32]]


class Encoder(ABC):
    """A frozen network.

    Args:
        path: The folder or file that holds its weights.
    """

    kind: ClassVar[str]  # what it encodes: "text" or "pictures"
    part: ClassVar[int]  # items that are encoded, and kept, at once

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    @abstractmethod
    def width(self) -> int:
        """Length of a vector."""

    @abstractmethod
    def files(self) -> list[Path]:
        """The files that determine the encoder's output."""

    @abstractmethod
    def encode(self, items: Sequence[Any]) -> Matrix:
        """The vectors of some items, one row each."""

    def remarks(self, items: Sequence[Any]) -> list[str]:
        """What is unusual about the items."""
        return []

    @cached_property
    def fingerprint(self) -> str:
        """Hash of everything that decides the vectors."""
        digest = hashlib.sha256(f"{type(self).__name__} {self.settings()}".encode())
        for file in self.files():
            digest.update(f"{file.name} {sha256(file)}\n".encode())
        return digest.hexdigest()

    def settings(self) -> str:
        """What decides the vectors beside the files."""
        return ""
