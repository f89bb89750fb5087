"""Files that are whole or not there: atomic writes, hashes, and records of JSON plus tensors.

A record is a folder with a manifest `<name>.json` and one `<name>-<generation>.safetensors`. Writing puts a new
generation of tensors beside the old one, then switches to it by renaming the manifest: a process that is killed at any
moment leaves the old record or the new one. Reading trusts nothing: sizes, hashes, names, shapes and dtypes must equal
those in the manifest, the manifest must match its own hash, and nothing is ever executed. Writers of one folder wait
for each other.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import math
import os
import re
import struct
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from posterity.errors import RefusedFile, expected
from posterity.trees import Tree

MANIFEST_LIMIT = 64 * 2**20  # bytes
HEADER_LIMIT = 16 * 2**20  # bytes
TENSOR_LIMIT = 100_000  # tensors in one file
ALIGNED = 64  # bytes that torch aligns tensors to
_CHUNK = 2**20

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class Record(NamedTuple):
    """What a record holds: JSON content and named tensors."""

    content: dict[str, Any]
    tensors: Tree


@contextlib.contextmanager
def atomic(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a file for writing that appears under its name complete, on disk, or not at all."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as why:
        temporary.unlink(missing_ok=True)
        if isinstance(why, OSError) and why.filename is None:
            why.filename = str(path)  # a full disk is an error without a name
        raise
    sync_folder(path.parent)


@contextlib.contextmanager
def one_at_a_time(folder: str | Path, seconds: float | None = None) -> Iterator[None]:
    """Wait until no other thread or process is in here with the same folder; the lock ends with its process.

    Args:
        folder: A folder that exists.
        seconds: How long to wait before giving up with a `TimeoutError`; None waits as long as it takes.
    """
    try:
        import fcntl

        handle = os.open(folder, os.O_RDONLY)
    except (ImportError, PermissionError):  # systems without such locks trust their users to write one at a time
        yield
        return
    try:
        until = None if seconds is None else time.monotonic() + seconds
        while not taken(handle, fcntl, wait=until is None):
            if until is not None and time.monotonic() > until:
                raise TimeoutError(errno.ETIMEDOUT, "another process is writing there", str(folder))
            time.sleep(0.005)
        yield
    finally:
        os.close(handle)


def taken(handle: int, fcntl: Any, wait: bool = False) -> bool:
    """Whether the lock of an open file is ours now; always where a file system has no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as why:  # some network file systems lock only what is open for writing, or nothing
        if why.errno not in (errno.EBADF, errno.ENOLCK, errno.ENOTSUP, errno.EINVAL):
            raise
    return True


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write a file atomically."""
    with atomic(path) as file:
        file.write(data)


def write_json(path: str | Path, value: Any) -> None:
    """Write a JSON file atomically: keys in order, no NaN, the same bytes for the same value."""
    write_bytes(path, _encode(value))


def read_json(path: str | Path, limit: int = MANIFEST_LIMIT) -> Any:
    """Read a JSON file of at most `limit` bytes, strictly."""
    return _decode(Path(path), _read(Path(path), limit))


def write_sealed(path: str | Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object atomically, with the hash of its content inside."""
    write_json(path, {**value, "sha256": hashlib.sha256(_encode(value)).hexdigest()})


def read_sealed(path: str | Path, limit: int = MANIFEST_LIMIT) -> dict[str, Any]:
    """Read what `write_sealed` wrote; refuse it unless every byte is as it was written."""
    data = _read(Path(path), limit)
    value = _decode(Path(path), data)
    if not isinstance(value, dict):
        raise RefusedFile(f"{path}: expected a JSON object, got another file")
    return _unsealed(Path(path), value, data)


def sha256(path: str | Path) -> str:
    """Hash of a file's bytes."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor]) -> str:
    """Write a safetensors file atomically, one tensor in memory at a time, and return its sha256."""
    # Wide dtypes first keeps every tensor aligned to its own size.
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {}
    offset = 0
    for name in order:
        t = tensors[name]
        if t.dtype not in DTYPES:
            raise expected(f"dtype of {name!r}", f"one of {sorted(DTYPES.values())}", t.dtype)
        size = t.numel() * t.element_size()
        header[name] = {"dtype": DTYPES[t.dtype], "shape": list(t.shape), "data_offsets": [offset, offset + size]}
        offset += size
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    digest = hashlib.sha256()
    with atomic(path) as file:
        prefix = struct.pack("<Q", len(encoded)) + encoded
        for block in itertools.chain((memoryview(prefix),), (_raw(tensors[name]) for name in order)):
            file.write(block)
            digest.update(block)
    return digest.hexdigest()


def read_tensors(path: str | Path, device: str | torch.device = "cpu") -> Tree:
    """Read a safetensors file; one that is damaged, or whose header is a bomb, is refused."""
    path = Path(path)
    _check_header(path)
    try:
        found = load_file(path, device=str(device))
    except (SafetensorError, ValueError) as error:
        raise RefusedFile(f"{path}: expected a safetensors file, got {error}") from None
    # Unaligned tensors may be multiplied in another order, so that a resumed run would differ in its last bits.
    return {name: t.clone() if t.data_ptr() % ALIGNED else t for name, t in found.items()}


def save_record(
    folder: str | Path, name: str, *, version: int, content: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Write a record into a folder, replacing the one of the same name all at once.

    Args:
        folder: Where to write; made if it is not there.
        name: What the record is ("posterior"): the stem of its files and the format that readers ask for.
        version: Version of the format.
        content: Anything that JSON can hold.
        tensors: Named tensors.
    """
    folder = Path(folder)
    make_folder(folder)
    with one_at_a_time(folder):
        generations = [int(match[1]) for path in folder.iterdir() if (match := _generation(name, path.name))]
        path = folder / f"{name}-{max(generations, default=0) + 1}.safetensors"
        digest = write_tensors(path, tensors)
        listed = {"name": path.name, "size": path.stat().st_size, "sha256": digest, "tensors": _inventory(tensors)}
        manifest = {"format": name, "version": version, "content": dict(content), "file": listed}
        write_sealed(folder / f"{name}.json", manifest)
        _sweep(folder, name, keep=path.name)


def load_record(folder: str | Path, name: str, *, version: int, device: str | torch.device = "cpu") -> Record:
    """Read a record that `save_record` wrote; refuse it unless every byte is as it was written."""
    path = Path(folder) / f"{name}.json"
    while True:
        data = _read(path, MANIFEST_LIMIT)
        manifest = _check_manifest(path, data, name, version)
        try:
            return Record(manifest["content"], _load_listed(path.parent, manifest["file"], device))
        except (RefusedFile, FileNotFoundError):
            # A writer may have switched to the next generation meanwhile, and swept away the one listed before.
            if _read(path, MANIFEST_LIMIT) == data:
                raise


def _load_listed(folder: Path, listed: Mapping[str, Any], device: str | torch.device) -> Tree:
    """The tensors that a manifest lists, if they match it."""
    path = folder / listed["name"]
    if not path.is_file():
        raise RefusedFile(f"{path}: expected the tensors that the manifest lists, got no such file")
    size = path.stat().st_size
    if size != listed["size"]:
        raise RefusedFile(f"{path}: expected {listed['size']} bytes, got {size}; the file is damaged")
    digest = sha256(path)
    if digest != listed["sha256"]:
        raise RefusedFile(f"{path}: expected sha256 {listed['sha256']}, got {digest}; the file is damaged")
    tensors = read_tensors(path, device)
    if (found := _inventory(tensors)) != listed["tensors"]:
        wrong = next(t for t in {**listed["tensors"], **found} if listed["tensors"].get(t) != found.get(t))
        raise RefusedFile(f"{path}: expected {listed['tensors'].get(wrong)} for {wrong!r}, got {found.get(wrong)}")
    return tensors


def _check_manifest(path: Path, data: bytes, name: str, version: int) -> dict[str, Any]:
    """A manifest of this format, no newer than `version`, whose bytes match its own hash."""
    manifest = _decode(path, data)
    if not isinstance(manifest, dict) or manifest.get("format") != name:
        raise RefusedFile(f"{path}: expected the manifest of a {name}, got another file")
    if type(manifest.get("version")) is not int or not 1 <= manifest["version"] <= version:
        raise RefusedFile(
            f"{path}: expected format version {version} or older, got {manifest.get('version')}; "
            "a newer posterity wrote it"
        )
    manifest = _unsealed(path, manifest, data)
    listed = manifest.get("file")
    fine = (
        isinstance(manifest.get("content"), dict)
        and isinstance(listed, dict)
        and isinstance(listed.get("tensors"), dict)
        and _generation(name, str(listed.get("name"))) is not None
        and {"size", "sha256"} <= listed.keys()
    )
    if not fine:
        raise RefusedFile(f"{path}: expected content and a list of tensors, got a manifest without them")
    return manifest


def _unsealed(path: Path, value: dict[str, Any], data: bytes) -> dict[str, Any]:
    """The content of a sealed object that was read from these bytes."""
    content = {name: entry for name, entry in value.items() if name != "sha256"}
    digest = value.get("sha256")
    # Comparing the bytes, too, refuses changes that JSON does not see, in white space for instance.
    if digest != hashlib.sha256(_encode(content)).hexdigest() or _encode(value) != data:
        raise RefusedFile(f"{path}: expected content with sha256 {digest}, got another; the file is damaged")
    return content


def _check_header(path: Path) -> None:
    """Refuse a header that is too long to be read safely, before anything parses it."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        start = file.read(8)
        if len(start) < 8:
            raise RefusedFile(f"{path}: expected a safetensors file, got {size} bytes")
        length = struct.unpack("<Q", start)[0]
        if length > min(HEADER_LIMIT, size - 8):
            raise RefusedFile(f"{path}: expected a header of at most {min(HEADER_LIMIT, size - 8)} bytes, got {length}")
        entries = file.read(length).count(b'"data_offsets"')
    if entries > TENSOR_LIMIT:
        raise RefusedFile(f"{path}: expected at most {TENSOR_LIMIT} tensors, got {entries}")


def _inventory(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: [DTYPES.get(t.dtype, str(t.dtype)), list(t.shape)] for name, t in tensors.items()}


def _sweep(folder: Path, name: str, keep: str) -> None:
    """Remove older generations, and the files of killed writers."""
    for path in folder.iterdir():
        litter = re.fullmatch(rf"\.{re.escape(name)}(-\d+)?\.(safetensors|json)\.[0-9a-f]{{12}}\.tmp", path.name)
        if litter or (_generation(name, path.name) and path.name != keep):
            # A file that a reader still holds open can refuse to go on some systems; the next sweep gets it.
            with contextlib.suppress(PermissionError):
                path.unlink(missing_ok=True)


def _generation(name: str, file_name: str) -> re.Match[str] | None:
    return re.fullmatch(rf"{re.escape(name)}-(\d+)\.safetensors", file_name)


def _raw(t: Tensor) -> memoryview:
    """The bytes of a tensor, in row-major order."""
    flat = t.detach().cpu().contiguous().as_strided((t.numel(),), (1,))  # a single number may come with stride 0
    return flat.view(torch.uint8).numpy().data


def _read(path: Path, limit: int) -> bytes:
    if not path.is_file():
        raise RefusedFile(f"{path}: expected a file, got none")
    size = path.stat().st_size
    if size > limit:
        raise RefusedFile(f"{path}: expected at most {limit} bytes, got {size}")
    return path.read_bytes()


def _encode(value: Any) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def _decode(path: Path, data: bytes) -> Any:
    def refuse(constant: str) -> Any:
        raise ValueError(f"the constant {constant}")

    def finite(text: str) -> float:
        return value if math.isfinite(value := float(text)) else refuse(text)

    try:
        return json.loads(data.decode(), parse_constant=refuse, parse_float=finite)
    except (ValueError, RecursionError) as error:
        raise RefusedFile(f"{path}: expected JSON, got {error}") from None


def make_folder(folder: Path) -> None:
    """Make a folder that lasts, with those above it; one that is there is left alone."""
    if not folder.is_dir():
        make_folder(folder.absolute().parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename durable; systems that cannot open folders do not need it."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
