"""Models and data given on a command line: Hugging Face folders, runs, factories with a checkpoint, arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

from posterity.cli._output import named
from posterity.errors import InvalidInput, MissingExtra, RefusedFile, expected

if TYPE_CHECKING:
    from torch import nn

TARGETS = ("targets", "labels", "y")


def open_model(spec: str, checkpoint: Path | None = None) -> nn.Module:
    """A model in float32, from a Hugging Face folder, the folder of a run, or `module:factory` and a checkpoint."""
    folder = Path(spec)
    if folder.is_dir():
        if checkpoint is not None:
            raise expected("checkpoint", f"none, {spec} has weights", str(checkpoint))
        return _run(folder) if (folder / "run.json").is_file() else _hugging_face(folder)
    if ":" not in spec:
        raise expected("model", "a Hugging Face folder, the folder of a run, or module:factory", spec)
    if checkpoint is None:
        raise expected("checkpoint", f"the weights for {spec}", None)
    return _made(spec, checkpoint)


def beside(spec: str, checkpoint: Path | None, ending: str) -> Path:
    """Where a file about a model belongs: next to its folder or its checkpoint."""
    home = named(Path(spec) if checkpoint is None else checkpoint)
    return home.parent / f"{home.stem if home.is_file() else home.name}.{ending}.safetensors"


def open_data(spec: str, model: str) -> Any:
    """Examples for a model: arrays in .npz or .safetensors, or "train" or "test" for those of a run.

    Targets are the array called targets, labels or y. A single other array is the input; several are given to the
    model under their names.
    """
    path = Path(spec)
    if spec in ("train", "test") and (Path(model) / "run.json").is_file():
        from posterity.runs import RunFolder

        return tuple(RunFolder.open(model).data(spec))
    if not path.is_file():
        raise InvalidInput(f"data: expected a file .npz or .safetensors, or train or test of a run, got {spec}")
    arrays = _arrays(path)
    found = [name for name in TARGETS if name in arrays]
    if len(found) != 1 or len(arrays) < 2:
        raise RefusedFile(f"{path}: expected inputs and one array among {TARGETS}, got {sorted(arrays)}")
    targets = arrays.pop(found[0])
    return (next(iter(arrays.values())) if len(arrays) == 1 else arrays), targets


def _arrays(path: Path) -> dict[str, Any]:
    import numpy as np
    import torch

    from posterity.files import read_tensors

    if path.suffix == ".safetensors":
        return dict(read_tensors(path))
    if path.suffix != ".npz":
        raise RefusedFile(f"{path}: expected .npz or .safetensors, got {path.suffix!r}")
    try:
        with np.load(path) as stored:
            return {name: _tensor(torch, stored[name]) for name in stored.files}
    except (OSError, ValueError, BadZipFile) as error:
        raise RefusedFile(f"{path}: expected arrays of numbers, got {error}") from None


def _tensor(torch: Any, array: Any) -> Any:
    """Integers as they are indexed with, other numbers as networks take them."""
    t = torch.as_tensor(array)
    return t.float() if t.is_floating_point() else t.long()


def _run(folder: Path) -> nn.Module:
    from posterity.runs import RunFolder

    return RunFolder.open(folder).model()


def _hugging_face(folder: Path) -> nn.Module:
    from posterity.files import read_json

    try:
        import transformers
    except ImportError as reason:
        raise MissingExtra("model: needs transformers; install it with pip install 'posterity[hf]'") from reason
    config = read_json(folder / "config.json")
    names = config.get("architectures") if isinstance(config, Mapping) else None
    kind = getattr(transformers, names[0], None) if names else None
    if kind is None:
        raise RefusedFile(f"{folder}: expected a config.json with an architecture of transformers, got {names}")
    made: nn.Module = kind.from_pretrained(folder, local_files_only=True, use_safetensors=True).float()
    return made.eval()


def _made(spec: str, checkpoint: Path) -> nn.Module:
    from posterity.runs.laplace import load_weights
    from posterity.runs.networks import network

    made = network(spec, (), 0)
    load_weights(made, checkpoint)
    return made.float().eval()
