"""Adapters on disk, as PEFT keeps them: what is trained here is loaded there, and the other way round."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from posterity.adapters.bases import NAME, check_base, frozen_weights, hashed, write_hashes
from posterity.adapters.layers import adapted_modules, place_adapters
from posterity.checkpoints import PEFT_PREFIX
from posterity.errors import InvalidInput, RefusedFile, expected
from posterity.files import read_json, read_tensors, write_json, write_tensors
from posterity.trees import Tree

if TYPE_CHECKING:
    from posterity.posterior import Posterior

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"


def save_adapter(
    model: nn.Module,
    folder: str | Path,
    *,
    posterior: Posterior | None = None,
    base: str | None = None,
    task: str | None = "SEQ_CLS",
) -> None:
    """Write the adapters of a model, and the modules that were trained beside them, as PEFT reads them.

    Hashes of the frozen weights go beside them, by which `load_adapter` and `merge_adapters` know the base.

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
        write_hashes(Path(folder), hashed(frozen_weights(model)))
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
        NAME: base,
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
    write_hashes(folder, hashed(frozen_weights(model)))
    write_json(folder / CONFIG, config)


@torch.no_grad()
def load_adapter(model: nn.Module, folder: str | Path) -> None:
    """Read an adapter that `save_adapter`, `merge_adapters` or PEFT wrote into a model, in place. PEFT is not needed.

    Args:
        model: The base model, which gets the adapters that the folder names, or one that has them (`insert_lora`).
        folder: The folder of the adapter. One that was trained beside other weights is refused.

    Examples:
        >>> load_adapter(base, "merged")  # doctest: +SKIP
    """
    folder = Path(folder)
    if hasattr(model, "peft_config"):
        raise expected("model", "one without PEFT's wrapping (PEFT has its own load_adapter)", "one of PEFT")
    config, tensors = _read(folder)
    layers = sorted({name.removesuffix(_A) for name in tensors if name.endswith(_A)})
    beside = sorted({name.rpartition(".")[0] for name in tensors if ".lora_" not in name})
    ranks = {tensors[layer + _A].shape[0] for layer in layers}
    if len(ranks) != 1 or config.get("alpha_pattern"):
        got = f"ranks {sorted(ranks)}" if len(ranks) != 1 else f"alpha_pattern {config['alpha_pattern']}"
        raise RefusedFile(f"{folder}: expected adapters of one rank and scale, got {got}; load them by PEFT")
    rank = ranks.pop()
    scale = config["lora_alpha"] / (rank**0.5 if config.get("use_rslora") else rank)
    there = adapted_modules(model)
    for name, layer in there.items():
        if name in layers and layer.scale != scale:
            raise RefusedFile(f"{folder / CONFIG}: expected the scale {layer.scale} of the model, got {scale}")
    _check(folder, tensors, _trained(model) if there else _trainable(model, layers, beside, rank))
    check_base(folder, config, model, layers)
    if not there:
        place_adapters(model, layers, rank=rank, alpha=scale * rank, dropout=0.0, trained=beside)
    for name, p in model.named_parameters():
        if p.requires_grad:
            p.copy_(tensors[name])


_A, _B = ".lora_A.weight", ".lora_B.weight"
Shapes = dict[str, tuple[int, ...]]


def _read(folder: Path) -> tuple[dict[str, Any], Tree]:
    """The configuration of an adapter and its tensors, under the names of the plain model."""
    if not (folder / CONFIG).is_file() or not (folder / TENSORS).is_file():
        raise RefusedFile(f"{folder}: expected an adapter with {CONFIG} and {TENSORS}, got none")
    config = read_json(folder / CONFIG)
    if config.get("peft_type") != "LORA" or "lora_alpha" not in config:
        raise RefusedFile(f"{folder / CONFIG}: expected a LoRA adapter with lora_alpha, got {config.get('peft_type')}")
    return config, {_plain(name): t for name, t in read_tensors(folder / TENSORS).items()}


def _trained(model: nn.Module) -> Shapes:
    """What is trained in a model with adapters."""
    return {name: tuple(p.shape) for name, p in model.named_parameters() if p.requires_grad}


def _trainable(model: nn.Module, layers: list[str], beside: list[str], rank: int) -> Shapes:
    """What would be trained with adapters of a rank beside some layers of a model, and some of its modules whole."""
    modules = dict(model.named_modules())
    found: Shapes = {}
    for name in layers:
        if isinstance(layer := modules.get(name), nn.Linear):
            found |= {name + _A: (rank, layer.in_features), name + _B: (layer.out_features, rank)}
    for name in beside:
        if name in modules:
            found |= {f"{name}.{part}": tuple(p.shape) for part, p in modules[name].named_parameters()}
    return found


def _check(folder: Path, tensors: Tree, there: Shapes) -> None:
    """Raise for the first tensor that the model and the adapter do not share."""
    for name in sorted(tensors.keys() | there.keys()):
        wanted = there.get(name, "none")
        got = tuple(tensors[name].shape) if name in tensors else "none"
        if wanted != got:
            raise RefusedFile(
                f"{folder / TENSORS}: expected {name!r} of shape {wanted}, as the model has it, got {got}; "
                "the adapter belongs to another base, rank or choice of layers"
            )


def _plain(name: str) -> str:
    """A name of PEFT's file as the plain model has it."""
    return name.removeprefix(PEFT_PREFIX).replace(".modules_to_save.default.", ".").replace(".default.", ".")
