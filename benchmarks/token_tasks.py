"""Texts of several tasks as numbers, with the weights that read them, in folders that a GPU machine can be given."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import datasets
import minilm
import numpy as np
import smollm
import torch
from torch import Tensor

TASKS = ("trec", "banking77", "clinc150")
LENGTH = 96  # tokens
OUT_OF_SCOPE = -1


def prepare(options: argparse.Namespace) -> None:
    """Write the encoder and the texts as numbers, for each network in folders of their own."""
    out, root = Path(options.prepare), datasets.folder(options.data)
    (out / "minilm").mkdir(parents=True, exist_ok=True)
    minilm.convert(Path(options.encoder), out / "minilm" / "minilm.safetensors")
    for task in TASKS:
        records = datasets.text(root, task)
        tokens = minilm.tokenise(Path(options.encoder), [record["text"] for record in records], LENGTH)
        _write(out / "minilm" / f"{task}.npz", records, tokens)
    if options.gguf:
        records = datasets.text(root, "sst5")
        tokens = smollm.prepare(Path(options.gguf), out, [record["text"] for record in records], LENGTH)
        _write(out / "smollm-1" / "sst5.npz", records, tokens)


def _write(path: Path, records: list[dict[str, Any]], tokens: list[list[int]]) -> None:
    """Split 0 is for training, 1 for validation, 2 for the test, 3 is out of scope."""
    names = sorted({str(record["label"]) for record in records if not str(record.get("split", "")).startswith("oos")})
    place = {name: i for i, name in enumerate(names)}
    labels = np.array([place.get(str(record["label"]), OUT_OF_SCOPE) for record in records], np.int16)
    kinds = {"train": 0, "val": 1, "validation": 1, "dev": 1, "test": 2, "oos_test": 3}
    split = np.array([kinds.get(str(record["split"]), 4) for record in records], np.uint8)
    if not (split == 1).any():
        train = np.flatnonzero(split == 0)
        split[np.random.default_rng(0).permutation(train)[: len(train) // 10]] = 1
    lengths = np.array([max(1, len(one)) for one in tokens], np.uint8)
    flat = np.concatenate([np.array(one or [1]) for one in tokens]).astype(np.uint16)
    np.savez_compressed(path, tokens=flat, lengths=lengths, labels=labels, split=split)
    print(f"{path}: {[int((split == i).sum()) for i in range(4)]} texts, {len(names)} classes")


def read(folders: list[Path], task: str, device: str, limit: int | None) -> tuple[list[tuple[Tensor, Tensor]], int]:
    """Train, validation, test and out-of-scope texts, padded to the longest, and the number of classes."""
    path = next(folder / f"{task}.npz" for folder in folders if (folder / f"{task}.npz").is_file())
    stored = np.load(path)
    lengths = torch.from_numpy(stored["lengths"]).long()
    tokens = torch.zeros(len(lengths), int(lengths.max()), dtype=torch.long)
    tokens[torch.arange(tokens.shape[1]) < lengths.unsqueeze(1)] = torch.from_numpy(stored["tokens"].astype(np.int64))
    labels, split = torch.from_numpy(stored["labels"]).long(), torch.from_numpy(stored["split"])
    parts = [(tokens[split == i][:limit].to(device), labels[split == i][:limit].to(device)) for i in range(4)]
    return parts, int(labels.max()) + 1


def trimmed(tokens: Tensor) -> Tensor:
    """A batch without the padding that none of its texts needs."""
    return tokens[:, : max(1, int((tokens != 0).sum(1).max()))]
