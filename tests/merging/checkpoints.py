"""Checkpoints to merge, in every form they come in."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

SHAPES = {"embed.weight": (50, 8), "layer.weight": (8, 8), "layer.bias": (8,), "scale": (), "empty": (0, 3)}


def random_tree(seed, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    tree = {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in SHAPES.items()}
    return tree | {"position_ids": torch.arange(5)}


def curvature_of(seed):
    return {n: t.float() ** 2 for n, t in random_tree(seed).items() if t.is_floating_point()}


def save_sharded(folder: Path, tree):
    folder.mkdir()
    names = sorted(tree)
    parts = {"model-00001-of-00002.safetensors": names[:3], "model-00002-of-00002.safetensors": names[3:]}
    for file, part in parts.items():
        save_file({n: tree[n] for n in part}, folder / file, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {n: file for file, part in parts.items() for n in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def save_plain(folder: Path, tree):
    folder.mkdir()
    save_file(tree, folder / "model.safetensors", metadata={"format": "pt"})
