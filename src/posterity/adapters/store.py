"""Adapters on disk, as PEFT keeps them: what is trained here is loaded there, and the other way round."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn

from posterity.adapters.layers import LoRALinear, adapted_modules
from posterity.checkpoints import PEFT_PREFIX
from posterity.errors import InvalidInput, RefusedFile, expected
from posterity.files import read_json, read_tensors, write_json, write_tensors
from posterity.posterior import Posterior
from posterity.trees import Tree

CONFIG, TENSORS, BASE = "adapter_config.json", "adapter_model.safetensors", "adapter_base.json"


def save_adapter(
    model: nn.Module,
    folder: str | Path,
    *,
    posterior: Posterior | None = None,
    base: str | None = None,
    task: str | None = "SEQ_CLS",
) -> None:
    """Write the adapters of a model, and the modules that were trained beside them, as PEFT reads them.

    Args:
        model: A model with adapters of `insert_lora`, or a model of PEFT, which then writes them itself.
        folder: Where to; made if it is not there.
        posterior: Whose mean to write; by default the weights that the model has.
        base: Name or path of the base model, for PEFT to find it. A model of PEFT has its own.
        task: PEFT's name of the task. A model of PEFT has its own.
    """
    if hasattr(model, "peft_config"):
        with nullcontext() if posterior is None else posterior.applied(model):
            model.save_pretrained(str(folder))  # type: ignore[operator]
        return
    found = adapted_modules(model)
    if not found:
        raise expected("model", "one with adapters (insert_lora, or of PEFT)", "one without")
    if posterior is not None:
        posterior.check(model)
    values: Tree = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if posterior is not None:
        values |= posterior.mean
    layers = list(found.values())
    if len({(layer.rank, layer.alpha) for layer in layers}) > 1:
        raise InvalidInput("model: expected adapters of one rank and scale, got several")
    inside = {name: name.rpartition(".lora_")[0] for name in values if ".lora_" in name}
    whole = sorted({name.rpartition(".")[0] for name in values if name not in inside})
    config = {
        "peft_type": "LORA",
        "task_type": task,
        "base_model_name_or_path": base,
        "r": layers[0].rank,
        "lora_alpha": layers[0].alpha,
        "lora_dropout": getattr(layers[0].lora_dropout, "p", 0.0),
        "target_modules": sorted(found),
        "modules_to_save": whole or None,
        "bias": "none",
        "inference_mode": True,
    }
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / TENSORS, {PEFT_PREFIX + name: t.detach() for name, t in values.items()})
    write_json(folder / BASE, {"sha256": _hash_of_base(found)})
    write_json(folder / CONFIG, config)


@torch.no_grad()
def load_adapter(model: nn.Module, folder: str | Path) -> None:
    """Read an adapter that `save_adapter` or PEFT wrote into the adapters of a model, in place.

    Args:
        model: The base model with adapters of the same layers and rank (`insert_lora`).
        folder: The folder of the adapter. One that was trained beside other weights is refused.
    """
    folder, found = Path(folder), adapted_modules(model)
    if not (folder / CONFIG).is_file() or not (folder / TENSORS).is_file():
        raise RefusedFile(f"{folder}: expected an adapter with {CONFIG} and {TENSORS}, got none")
    config = read_json(folder / CONFIG)
    if config.get("peft_type") != "LORA":
        raise RefusedFile(f"{folder / CONFIG}: expected a LoRA adapter, got {config.get('peft_type')}")
    tensors = {_plain(name): t for name, t in read_tensors(folder / TENSORS).items()}
    there = {name: p for name, p in model.named_parameters() if p.requires_grad}
    _check(folder, tensors, there)
    for layer in found.values():
        scale = config["lora_alpha"] / (layer.rank**0.5 if config.get("use_rslora") else layer.rank)
        if scale != layer.scale:
            raise RefusedFile(f"{folder / CONFIG}: expected the scale {layer.scale} of the model, got {scale}")
    if (folder / BASE).is_file() and read_json(folder / BASE).get("sha256") != _hash_of_base(found):
        raise RefusedFile(
            f"{folder}: expected an adapter of this base model, got one of other weights; load its own base"
        )
    for name, p in there.items():
        p.copy_(tensors[name])


def _check(folder: Path, tensors: Tree, there: Mapping[str, Tensor]) -> None:
    """Raise for the first tensor that the model and the adapter do not share."""
    for name in sorted(tensors.keys() | there.keys()):
        wanted = tuple(there[name].shape) if name in there else "none"
        got = tuple(tensors[name].shape) if name in tensors else "none"
        if wanted != got:
            raise RefusedFile(
                f"{folder / TENSORS}: expected {name!r} of shape {wanted}, as the model has it, got {got}; "
                "the adapter belongs to another base, rank or choice of layers"
            )


def _plain(name: str) -> str:
    """A name of PEFT's file as the plain model has it."""
    return name.removeprefix(PEFT_PREFIX).replace(".modules_to_save.default.", ".").replace(".default.", ".")


def _hash_of_base(layers: Mapping[str, LoRALinear]) -> str:
    """Hash of the frozen weights beside the adapters, rounded to float16: copies in other dtypes are the same base."""
    digest = hashlib.sha256()
    for name, layer in sorted(layers.items()):
        weight = layer.base_layer.weight.detach().to("cpu", torch.float16).contiguous()
        digest.update(name.encode() + weight.numpy().tobytes())
    return digest.hexdigest()
