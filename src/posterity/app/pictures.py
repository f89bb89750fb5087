"""Previews of examples: arrays of pixels as PNG files, texts, rows of a table with their distance from the mean."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from posterity.app.source import Kind, Preview
from posterity.errors import expected, require

Array = np.ndarray[Any, Any]
TEXT_LIMIT = 20_000  # characters


def png(pixels: Array) -> bytes:
    """An image (height, width) or (height, width, 3) of bytes as a PNG file.

    Examples:
        >>> png(np.zeros((2, 2), np.uint8))[1:4]
        b'PNG'
    """
    height, width = pixels.shape[:2]
    kind = {2: 0, 3: 2}[pixels.ndim]
    rows = pixels.reshape(height, -1)
    raw = np.concatenate([np.zeros((height, 1), np.uint8), rows], axis=1).tobytes()  # no filter, row by row
    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(raw, 6)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in parts)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def pixels_of(image: Array) -> Array:
    """Any image, channels first or last, as bytes: bytes stay, numbers are stretched from darkest to brightest."""
    image = np.asarray(image)
    if image.ndim == 3 and image.shape[0] in (1, 3) and image.shape[2] not in (1, 3):
        image = image.transpose(1, 2, 0)
    if image.ndim == 3 and image.shape[2] == 1:
        image = image[:, :, 0]
    fine = image.ndim == 2 or (image.ndim == 3 and image.shape[2] == 3)
    require(fine, "image", "(height, width), with one or three channels", image.shape)
    if image.dtype == np.uint8:
        return np.ascontiguousarray(image)
    values = image.astype(np.float64)
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)
    values = np.nan_to_num(values, nan=low, posinf=high, neginf=low)  # what is missing is dark
    return np.rint((values - low) / ((high - low) or 1.0) * 255).astype(np.uint8)


def kind_of(examples: Any) -> Kind:
    """What previews of these examples are: a DataFrame holds rows, an array images or rows, a sequence texts."""
    if isinstance(examples, pd.DataFrame):
        return "row"
    if isinstance(examples, np.ndarray):
        return "image" if examples.ndim in (3, 4) else "row"
    if isinstance(examples, Sequence) and all(isinstance(text, str) for text in examples[:100]):
        return "text"
    raise expected("examples", "images (N, height, width), texts or a DataFrame", type(examples).__name__)


def previews(examples: Any) -> Callable[[int], Preview]:
    """Position -> preview, for images, texts or rows."""
    kind = kind_of(examples)
    if kind == "image":
        return lambda row: Preview("image", png(pixels_of(examples[row])))
    if kind == "text":
        return lambda row: Preview("text", str(examples[row])[:TEXT_LIMIT])
    frame = examples if isinstance(examples, pd.DataFrame) else pd.DataFrame(examples)
    numbers = frame.select_dtypes("number").replace([np.inf, -np.inf], np.nan)
    mean, spread = numbers.mean(), numbers.std().replace(0, 1)

    def show(row: int) -> Preview:
        z = ((numbers.iloc[row] - mean) / spread).to_dict()
        return Preview("row", {str(name): _cell(v, z.get(name)) for name, v in frame.iloc[row].items()})

    return show


def search(examples: Any) -> Callable[[str], Array]:
    """Text -> which of the examples contain it, ignoring case."""
    if isinstance(examples, pd.DataFrame):
        texts = examples.astype(object).fillna("").astype(str).agg(" ".join, axis=1).tolist()
    else:
        texts = [str(text) for text in examples]
    lowered = [text.casefold() for text in texts]
    return lambda wanted: np.fromiter((wanted.casefold() in text for text in lowered), bool, len(lowered))


def _cell(value: Any, z: Any) -> dict[str, Any]:
    number = isinstance(value, (int, float, np.number)) and not isinstance(value, (bool, np.bool_))
    shown = float(value) if number and np.isfinite(value) else "" if pd.isna(value) else str(value)
    return {"value": shown, "z": None if z is None or not np.isfinite(z) else float(z)}
