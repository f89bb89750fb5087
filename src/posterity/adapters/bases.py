"""Which base an adapter belongs to: hashes of the frozen weights that it was trained beside, or its name."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posterity.checkpoints import PEFT_PREFIX, open_checkpoint
from posterity.errors import RefusedFile
from posterity.files import read_json, write_json

BASE = "adapter_base.json"  # beside PEFT's files, which it ignores
NAME = "base_model_name_or_path"  # in PEFT's configuration


def frozen_weights(model: nn.Module, layers: Sequence[str] | None = None) -> dict[str, Tensor]:
    """The weights that adapters are added to, by the names that layers have without PEFT.

    Args:
        model: A model with adapters, of `insert_lora` or of PEFT; without them, `layers` are looked at.
        layers: Names of those layers.
    """
    modules = {name.removeprefix(PEFT_PREFIX): module for name, module in model.named_modules()}
    chosen = [name for name, module in modules.items() if hasattr(module, "lora_A")] if layers is None else layers
    bases = {name: getattr(modules[name], "base_layer", modules[name]) for name in chosen}
    return {name: base.weight for name, base in bases.items()}


def write_hashes(folder: Path, hashes: Mapping[str, str]) -> None:
    """Keep the hashes of the base beside an adapter."""
    write_json(folder / BASE, {"layers": dict(hashes)})


def read_hashes(folder: Path) -> dict[str, str]:
    """The hashes that an adapter carries, by layer; none where PEFT wrote it."""
    found = read_json(folder / BASE) if (folder / BASE).is_file() else {}
    layers = found.get("layers", {}) if isinstance(found, dict) else None
    if not isinstance(layers, dict):
        raise RefusedFile(f"{folder / BASE}: expected hashes of the base by layer, got something else; delete the file")
    return layers


def hashed(weights: Mapping[str, Tensor]) -> dict[str, str]:
    """Hashes of weights, rounded to float16: copies in other dtypes are the same base."""
    return {
        name: hashlib.sha256(t.detach().to("cpu", torch.float16).contiguous().numpy().tobytes()).hexdigest()
        for name, t in weights.items()
    }


def check_base(folder: Path, config: Mapping[str, Any], model: nn.Module, layers: Sequence[str]) -> None:
    """Raise where an adapter is known to belong to another base than the model; warn where its name is another one.

    Known are the hashes that `save_adapter` writes; for an adapter of PEFT, the weights of its base where they lie on
    this machine. Two names of a hub that differ are two models. The name of a folder proves nothing.

    Args:
        folder: The adapter.
        config: Its configuration.
        model: The model that it is loaded into.
        layers: Names of the layers that it changes.
    """
    weights = frozen_weights(model, layers)
    ours, theirs = hashed(weights), read_hashes(folder)
    named, have = config.get(NAME), getattr(model, "name_or_path", "")
    if not theirs and isinstance(named, str) and Path(named).is_dir():
        theirs = hashed(_stored(Path(named), weights, getattr(model, "base_model_prefix", "")))
    if any(theirs[name] != found for name, found in ours.items() if name in theirs):
        known = f" ({named})" if named else ""
        raise RefusedFile(
            f"{folder}: expected an adapter of this base model, got one of other weights; load its own base{known}"
        )
    if theirs or not named or not have or Path(named).name == Path(have).name:
        return
    if Path(named).exists() or Path(have).exists():
        warnings.warn(
            f"{folder}: the adapter was trained beside {named!r}, and the model is {have!r}. Whether they are the same "
            "cannot be seen. Load the adapter's own base, or write it again by posterity.adapters.save_adapter, which "
            "keeps a hash of the base.",
            stacklevel=3,
        )
    else:
        raise RefusedFile(
            f"{folder}: expected an adapter of {have!r}, got one of {named!r}; load that base. If both names mean the "
            f"same weights, give {have!r} as {NAME} in adapter_config.json"
        )


def common_hashes(folders: Mapping[str, Path]) -> dict[str, str]:
    """The hashes that several adapters of one base carry between them; adapters of two bases are refused.

    Args:
        folders: The adapters, by name.
    """
    found: dict[str, str] = {}
    for name, folder in folders.items():
        for layer, value in read_hashes(folder).items():
            if found.setdefault(layer, value) != value:
                raise RefusedFile(
                    f"{folder}: expected an adapter of the same base as the others, got {name!r}, trained beside other "
                    f"weights in {layer}; merge adapters of one base"
                )
    return found


def _stored(folder: Path, weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Those of the weights that a checkpoint holds under their names, or without the prefix of a model with a head."""
    try:
        stored = open_checkpoint(folder)
    except RefusedFile:
        return {}  # no weights there: only their name can be compared
    found = {}
    for name, weight in weights.items():
        for other in (f"{name}.weight", f"{name}.weight".removeprefix(f"{prefix}."), f"{prefix}.{name}.weight"):
            entry = stored.find(other)
            if entry is not None and entry.shape == tuple(weight.shape):
                found[name] = stored.read(other, 0, entry.count).reshape(entry.shape)
                break
    return found
