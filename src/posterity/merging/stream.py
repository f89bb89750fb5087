"""Merging checkpoints on disk: a chunk of every model in memory, never a model."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path

import torch
from torch import Tensor

from posterity.errors import InvalidInput, PosterityError, RefusedFile
from posterity.files import read_json, sync_folder, write_bytes, write_json
from posterity.merging._card import card
from posterity.merging._method import Chunk
from posterity.merging._prefetch import keep_memory, one_thread_each, prefetched
from posterity.merging.job import CHUNK, Job, Opened, open_job
from posterity.merging.shards import Shard, plan_shards, write_index, write_shards
from posterity.progress import track

PLAN = "merge-plan.json"
COMPANIONS = (".json", ".txt", ".model", ".jinja")  # configuration and tokenizer
COMPANION_LIMIT = 64 * 2**20  # bytes


def merge_checkpoints(job: Job, out: str | Path) -> Path:
    """Merge checkpoints into a new folder, reading and writing a chunk at a time.

    The folder appears complete or not at all: until then, finished shards are in `<out>.partial`, and the same merge,
    started again, resumes from them. Names, shapes, weights and disk space are checked before anything is written.

    Args:
        job: What to merge, and how.
        out: Folder to make.

    Returns:
        The folder, with safetensors (and their index), the configuration and tokenizer of the base (or of the first
        model) and a card with the sources and settings of the merge.
    """
    out = Path(out)
    if out.exists():
        raise RefusedFile(f"{out}: expected a folder that does not exist yet, got one that does")
    opened = open_job(job)
    shards = plan_shards(opened.like.entries, job.shard_size, _metadata(opened))
    partial, plan = out.with_name(f"{out.name}.partial"), _plan(opened, shards)
    finished = _finished(partial, plan, shards)
    missing = [shard for shard in shards if shard.file not in finished]
    out.parent.mkdir(parents=True, exist_ok=True)
    _check_space(out.parent, missing)
    partial.mkdir(exist_ok=True)
    write_json(partial / PLAN, plan)
    keep_memory()
    try:
        with one_thread_each():
            _write(opened, partial, missing)
    except PosterityError:
        shutil.rmtree(partial)  # the same merge would fail again
        raise
    write_index(partial, shards)
    for companion in _companions(opened.like.path):
        write_bytes(partial / companion.name, companion.read_bytes())
    write_bytes(partial / "README.md", card(opened).encode())
    os.replace(partial, out)
    sync_folder(out.parent)
    (out / PLAN).unlink()  # last: without its plan, a folder could not be told from somebody else's
    return out


def _write(opened: Opened, folder: Path, shards: list[Shard]) -> None:
    method = opened.job.method
    floating = [name for name, entry in opened.like.entries.items() if entry.dtype.is_floating_point]
    shared = None
    if shards and method.scope == "model":
        shared = method.measure(lambda: (s for name in floating for s in opened.chunks(name)))
    names = track([name for shard in shards for name in shard.entries], "Merging")
    # The bar advances by one name for every tensor that a shard takes.
    pieces = (prefetched(p for _ in shard.entries for p in _pieces(opened, next(names), shared)) for shard in shards)
    write_shards(folder, zip(shards, pieces, strict=True))


def _pieces(opened: Opened, name: str, shared: object) -> Iterator[Callable[[], Tensor]]:
    """The merged tensor in the dtype it had, as pieces that are made when they are called."""
    entry, method = opened.like.entries[name], opened.job.method
    if not entry.dtype.is_floating_point:
        for start in range(0, entry.count, CHUNK):
            yield functools.partial(opened.like.read, name, start, min(CHUNK, entry.count - start))
        return
    measured = method.measure(lambda: opened.chunks(name)) if method.scope == "tensor" and entry.count else shared

    def piece(read: Callable[[], Chunk]) -> Tensor:
        return _stored(name, method.combine(read(), measured), entry.dtype, read)

    for read in opened.reads(name):
        yield functools.partial(piece, read)


def _stored(name: str, merged: Tensor, dtype: torch.dtype, read: Callable[[], Chunk]) -> Tensor:
    """A merged piece in the dtype of its tensor; NaN and infinity are refused."""
    piece = merged.to(dtype).contiguous()
    largest = torch.finfo(dtype).max
    low, high = torch.aminmax(merged)  # one pass, and NaN shows in it
    if -largest <= low.item() and high.item() <= largest:
        return piece
    if not bool(torch.isfinite(piece).all()):  # what lies beyond the largest by less than half a step is rounded to it
        chunk = read()  # again: the first may have been overwritten
        every = [chunk.base, *chunk.models, *chunk.curvatures]
        given = all(bool(torch.isfinite(t).all()) for t in every if t is not None)
        why = f"numbers beyond {dtype}" if given else "NaN or infinity in a model"
        raise InvalidInput(f"{name}: expected finite numbers, got {why}")
    return piece


def _metadata(opened: Opened) -> dict[str, str]:
    """What came with the tensors, and the names that are tied to one of them."""
    return {"format": "pt", **opened.like.metadata, **opened.like.aliases}


def _plan(opened: Opened, shards: list[Shard]) -> dict[str, str]:
    """A fingerprint of everything that the result depends on."""
    files = [(str(f), f.stat().st_size, f.stat().st_mtime_ns) for c in opened.checkpoints for f in c.files]
    described = json.dumps([repr(opened.job), files, [hashlib.sha256(s.header).hexdigest() for s in shards]])
    return {"plan": hashlib.sha256(described.encode()).hexdigest()}


def _finished(partial: Path, plan: dict[str, str], shards: list[Shard]) -> set[str]:
    """The shards that an interrupted run of the same merge has finished; all else that it left is cleared away."""
    if not partial.exists():
        return set()
    if all(fnmatch(file.name, f".{PLAN}.*.tmp") for file in partial.iterdir()):  # killed before its plan was there
        shutil.rmtree(partial)
        return set()
    if not (partial / PLAN).is_file():
        raise RefusedFile(f"{partial}: expected nothing or an interrupted merge, got another folder")
    if read_json(partial / PLAN) != plan:
        shutil.rmtree(partial)
        return set()
    for litter in partial.glob(".*.tmp"):
        litter.unlink()
    sizes = {file.name: file.stat().st_size for file in partial.iterdir()}
    return {shard.file for shard in shards if sizes.get(shard.file) == shard.size}


def _check_space(folder: Path, shards: list[Shard]) -> None:
    needed, free = sum(shard.size for shard in shards), shutil.disk_usage(folder).free
    if needed > free:
        raise RefusedFile(f"{folder}: expected {needed / 1e9:.2f} GB of free disk, got {free / 1e9:.2f} GB")


def _companions(path: Path) -> list[Path]:
    """Small files beside a model that make it usable: configuration, tokenizer, vocabulary."""
    if not path.is_dir():
        return []
    fitting = [f for f in sorted(path.iterdir()) if f.suffix in COMPANIONS and not f.name.endswith(".index.json")]
    return [file for file in fitting if file.is_file() and file.stat().st_size <= COMPANION_LIMIT]
