"""Readers of common data files, as rows: a table, and perhaps a block of numbers for each row."""

from __future__ import annotations

import gzip
import io
import lzma
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from posterity.cells import counted
from posterity.errors import InvalidInput, MissingExtra, RefusedFile, expected, require_whole
from posterity.features.pictures import decoding
from posterity.files import read_sealed, write_bytes
from posterity.runs.delimited import read_delimited
from posterity.runs.store import LIST, TRAINING

LABEL = "label"  # what the labels of pictures are called, unless the user names them
PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
FILE = "file"  # the column of their names
_SHEETS = (".xls", ".xlsx", ".ods")
_PACKED = (".gz", ".bz2", ".xz", ".zip")
_INPUT_NAMES = ("x", "X", "inputs", "features", "images", "embeddings", "data")
_IDX_DTYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
# What libraries raise about files that are not as they should be.
DAMAGE = (
    *(ValueError, OSError, EOFError, KeyError, IndexError, TypeError, AttributeError, NotImplementedError),
    *(RecursionError, MemoryError, struct.error, zlib.error, lzma.LZMAError, zipfile.BadZipFile),
)
_IDX_LIMIT = 2**34  # bytes that an idx file may unpack to


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a file, unchanged.

    Args:
        table: The columns; values are text, numbers or missing.
        block: An array with one entry for each row (pictures, vectors), if there is one.
        remarks: What was unusual about reading them.
    """

    table: pd.DataFrame
    block: np.ndarray[Any, Any] | None = None
    remarks: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.table)

    @property
    def form(self) -> tuple[int, ...] | None:
        """Channels, height and width of pictures as folders hold them; None where there are no such."""
        shape: tuple[int, ...] = () if self.block is None else self.block.shape[1:]
        if len(shape) == 2:
            return (1, *shape)
        return (3, *shape[:2]) if len(shape) == 3 and shape[2] == 3 else None

    def take(self, positions: np.ndarray[Any, Any]) -> Rows:
        """The rows at these positions."""
        block = None if self.block is None else self.block[positions]
        return Rows(self.table.iloc[positions].reset_index(drop=True), block)


def read_rows(
    path: Path,
    inputs: str | None = None,
    size: int | None = None,
    target: str | None = None,
    like: tuple[int, ...] | None = None,
) -> Rows:
    """The rows of a file or folder, by its name.

    Args:
        path: CSV (with commas, semicolons, tabs or bars), JSON lines or parquet (tables; packed ones too), npz, idx
            (MNIST's format), a folder with pictures in one subfolder for each class, or one picture.
        inputs: For npz: the name of the array of inputs.
        size: For pictures: height and width that they are brought to; by default those of the first one.
        target: The column to predict: for idx and pictures, the name that their labels get; for npz, an array that has
            to fit the inputs, where there is one (others that do not are left out).
        like: For pictures: channels, height and width of others that a model takes; by default colours are kept
            where there are any, and `size` decides.
    """
    if size is not None:
        require_whole("size", size)
    if path.is_dir():
        return _pictures(path, picture_files(path), size, target or LABEL, like)
    if not path.is_file():
        why = "which is a pipe or a device: save it as a file" if path.exists() else "which is not there"
        raise InvalidInput(f"data: expected a file or folder, got {path}, {why}")
    if path.suffix.lower() in PICTURES:
        return _pictures(path.parent, [path], size, target or LABEL, like)
    plain = without_packing(path)
    if "idx" in plain.name and plain.suffix not in _TABLES:
        return _idx(path, target or LABEL)
    reader = _READERS.get(plain.suffix.lower())
    if reader is None:
        known = ", ".join(sorted(_READERS))
        cure = "; save the sheet as CSV" if plain.suffix.lower() in _SHEETS else ""
        wanted = f"a file that ends in one of {known}, an idx file or a folder of pictures"
        raise InvalidInput(f"{expected('data', wanted, path.name)}{cure}")
    try:
        rows = _npz(path, inputs, target) if reader is _npz else reader(path)
    except DAMAGE as why:
        if isinstance(why, (InvalidInput, RefusedFile, MissingExtra)):
            raise
        raise RefusedFile(f"{path}: expected a readable {plain.suffix[1:]} file, got {_trouble(path, why)}") from why
    if len(rows) == 0:
        raise InvalidInput(f"{path}: expected at least one row, got none")
    return rows


def with_block(rows: Rows, path: Path, inputs: str | None) -> Rows:
    """The rows with vectors from another file, embeddings of their texts for instance, one for each."""
    block = read_rows(path, inputs).block
    if block is None or len(block) != len(rows):
        got = "none" if block is None else f"{len(block)}"
        raise expected("embeddings", f"one vector for each of the {len(rows)} rows", got)
    return replace(rows, block=block)


def write_block(block: np.ndarray[Any, Any], path: Path) -> None:
    """Write an array for each of some rows, as `with_block` reads it."""
    packed = io.BytesIO()
    np.savez_compressed(packed, inputs=block)
    write_bytes(path, packed.getvalue())


def _csv(path: Path) -> Rows:
    return Rows(read_delimited(path))


def _json_lines(path: Path) -> Rows:
    return Rows(_flat(path, pd.read_json(path, lines=True, dtype=False)))


def _parquet(path: Path) -> Rows:
    try:
        table = pd.read_parquet(path)
    except ImportError as why:
        raise MissingExtra(f"{path}: expected the package pyarrow for parquet files; pip install pyarrow") from why
    for name in table:
        if isinstance(table[name].dtype, pd.CategoricalDtype) or table[name].dtype == bool:
            table[name] = table[name].astype(object)
    return Rows(_flat(path, table.rename(columns=str).reset_index(drop=True)))


def _flat(path: Path, table: pd.DataFrame) -> pd.DataFrame:
    """A table whose cells hold one value each."""
    for name in [name for name in table if table[name].dtype == object]:
        nested = table[name].map(pd.api.types.is_list_like)
        if nested.any():
            got = type(table[name][nested].iloc[0]).__name__
            raise InvalidInput(
                f"{path}: expected one value in each cell of {name!r}, got a {got}; leave the column out"
            )
    return table


def _npz(path: Path, inputs: str | None, target: str | None) -> Rows:
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    arrays = {name: array for name, array in arrays.items() if array.ndim > 0}
    blocks = [name for name in arrays if arrays[name].ndim > 1]
    if inputs is not None and inputs not in arrays:
        raise expected("inputs", f"an array among {sorted(arrays)}", inputs)
    chosen = inputs or next((name for name in _INPUT_NAMES if name in blocks), blocks[0] if len(blocks) == 1 else None)
    if chosen is None and blocks:
        raise expected("inputs", f"the name of one of the arrays {blocks} (--inputs)", "none")
    lengths = [len(array) for array in arrays.values() if array.ndim == 1]
    n = len(arrays[chosen]) if chosen is not None else max(lengths, default=0)
    if target in arrays and arrays[target].shape != (n,):
        got = f"an array of shape {arrays[target].shape}"
        raise InvalidInput(f"{path}: expected {n} values of {target!r}, one for each row of inputs, got {got}")
    table = pd.DataFrame({name: a for name, a in arrays.items() if a.ndim == 1 and len(a) == n}, index=range(n))
    return Rows(table, None if chosen is None else arrays[chosen])


def _idx(path: Path, target: str) -> Rows:
    images = _read_idx(path)
    labels = path.with_name(path.name.replace("images", "labels").replace("idx3", "idx1"))
    table = pd.DataFrame(index=range(len(images)))
    if labels != path and labels.is_file():
        found = _read_idx(labels)
        if len(found) != len(images):
            raise InvalidInput(f"{labels}: expected {len(images)} labels, got {len(found)}")
        table[target] = found
    return Rows(table, images)


def _read_idx(path: Path) -> np.ndarray[Any, Any]:
    """An array in the format of MNIST: two zeros, the type, the number of axes, their lengths, the numbers."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as file:
            zeros, kind, axes = struct.unpack(">HBB", file.read(4))
            if zeros or kind not in _IDX_DTYPES or not 1 <= axes <= 4:
                raise ValueError("no header of an idx file")
            shape = struct.unpack(f">{axes}I", file.read(4 * axes))
            dtype = np.dtype(_IDX_DTYPES[kind])
            wanted = math.prod(shape) * dtype.itemsize
            if not 0 < wanted <= _IDX_LIMIT:
                raise ValueError(f"{shape} numbers")
            data = file.read(wanted + 1)
    except DAMAGE as why:
        raise RefusedFile(f"{path}: expected an idx file, got an error: {_line(why)}") from why
    if len(data) != wanted:
        raise RefusedFile(f"{path}: expected {wanted} bytes of numbers for {shape}, got {len(data)}")
    return np.frombuffer(data, dtype).reshape(shape)


def _pictures(folder: Path, files: list[Path], size: int | None, target: str, like: tuple[int, ...] | None) -> Rows:
    """Pictures of a folder, with the name of their subfolder as label; outside of subfolders they have no label."""
    if not files:
        raise InvalidInput(f"{folder}: expected pictures ({', '.join(PICTURES)}), got none")
    known = like if like is not None and len(like) == 3 else None
    shape = known[1:] if known else (size, size) if size else _first(files).shape[:2]
    mode, channels = ("L", ()) if known and known[0] == 1 else ("RGB", (3,))
    block = _room(len(files), *shape, *channels)
    readable: list[Path] = []
    trouble: list[RefusedFile] = []
    for path in files:
        try:
            block[len(readable)] = _picture(path, shape, mode)
            readable.append(path)
        except RefusedFile as why:
            trouble.append(why)
    if not readable:
        raise trouble[0]
    block = block[: len(readable)]
    if not known and bool((block == block[..., :1]).all()):
        block = block[..., 0]
    skipped = [path for path in files if path not in set(readable)]
    return Rows(picture_table(folder, readable, target), block, unreadable(folder, skipped))


def picture_table(folder: Path, files: list[Path], target: str) -> pd.DataFrame:
    """Names of pictures, and the names of their subfolders as labels."""
    names = [path.relative_to(folder).as_posix() for path in files]
    labels = [name.split("/")[0] if "/" in name else None for name in names]
    return pd.DataFrame({FILE: names} | {target: labels})


def unreadable(folder: Path, files: list[Path]) -> tuple[str, ...]:
    """A remark about pictures that are left out, if there are any."""
    if not files:
        return ()
    names = ", ".join(path.relative_to(folder).as_posix() for path in files[:5])
    skipped = f"{counted(len(files), 'picture')} that cannot be read"
    return (f"skipped {skipped}: {names}{' ...' if len(files) > 5 else ''}",)


def _first(files: list[Path]) -> np.ndarray[Any, Any]:
    """The first picture that can be read."""
    for path in files:
        try:
            return _picture(path, None, "RGB")
        except RefusedFile:
            continue
    return _picture(files[0], None, "RGB")


def _room(count: int, height: int, width: int, *channels: int) -> np.ndarray[Any, Any]:
    """Memory for all pictures at once."""
    try:
        return np.empty((count, height, width, *channels), np.uint8)
    except (MemoryError, ValueError):
        got = f"{count} of {height} x {width} pixels"
        raise expected("pictures", "no more than fit in memory (choose a smaller --size)", got) from None


def without_packing(path: Path) -> Path:
    """A path without its compression suffix."""
    return path.with_suffix("") if path.suffix in _PACKED else path


def _sealed(path: Path) -> bool:
    """Whether a file is one of a run: others may have its name."""
    try:
        read_sealed(path)
    except RefusedFile:
        return False
    return True


def picture_files(folder: Path) -> list[Path]:
    """The pictures of a folder, in order; those in hidden files, and in a run inside the folder, are not."""
    paths = [path.relative_to(folder) for path in folder.rglob("*")]
    runs = {path.parent for path in paths if path.name in (LIST, TRAINING) and _sealed(folder / path)} - {Path()}
    seen = (path for path in paths if path.suffix.lower() in PICTURES and runs.isdisjoint(path.parents))
    return sorted(folder / path for path in seen if not any(part.startswith(".") for part in path.parts))


def _picture(path: Path, shape: tuple[int, ...] | None, mode: str) -> np.ndarray[Any, Any]:
    try:
        from PIL import Image, ImageOps
    except ImportError as why:
        raise MissingExtra("pictures: expected the package pillow; pip install 'posterity[images]'") from why
    with decoding(path), Image.open(path) as picture:
        if picture.mode.startswith(("I", "F")):  # numbers that would be cut off at 255
            raise ValueError("more than 8 bits a channel; save it with 8, or all of them as an npz")
        found = ImageOps.exif_transpose(picture)
        if "A" in found.getbands() or "transparency" in found.info:  # what is behind it is white, as paper is
            found = found.convert("RGBA")
            found = Image.alpha_composite(Image.new("RGBA", found.size, "white"), found)
        found = found.convert(mode)
        if shape is not None and found.size != (shape[1], shape[0]):
            found = found.resize((shape[1], shape[0]), Image.Resampling.BILINEAR)
        return np.asarray(found)


def picture_size(path: Path) -> tuple[int, int] | None:
    """Width and height of a picture, from its head alone; None where it cannot be read."""
    try:
        from PIL import Image
    except ImportError:
        return None
    try:
        with decoding(path), Image.open(path) as picture:
            return picture.size
    except RefusedFile:
        return None


def _trouble(path: Path, why: BaseException) -> str:
    """What is wrong with a file, and the way out where there is one."""
    if path.stat().st_size == 0:
        return "an empty one"
    if isinstance(why, UnicodeDecodeError):
        return f"bytes that are no UTF-8 (the first is 0x{why.object[why.start]:02x}); save it as UTF-8"
    if "pickle" in str(why):
        return "pickled objects, or no arrays at all, which are never loaded; save arrays of numbers or text"
    if uneven := re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(why)):
        return f"{uneven[3]} cells in line {uneven[2]}, where the first has {uneven[1]}"
    return f"an error: {_line(why)}"


def _line(why: BaseException) -> str:
    return (str(why).splitlines() or [type(why).__name__])[0]


_TABLES: dict[str, Callable[[Path], Rows]] = {
    ".csv": _csv,
    ".tsv": _csv,
    ".txt": _csv,
    ".jsonl": _json_lines,
    ".parquet": _parquet,
}
_READERS: dict[str, Callable[..., Rows]] = {**_TABLES, ".npz": _npz}
