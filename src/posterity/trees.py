"""Named parameters and flat vectors: one order, one dtype rule."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from posterity.doubles import exclusive
from posterity.errors import expected, require

Tree = dict[str, Tensor]


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters a learner moves, by name; tied parameters appear once, frozen ones not at all."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def require_values(model: nn.Module) -> None:
    """Raise for a model with parameters on the device meta, which have shapes and no values."""
    meta = any(p.device.type == "meta" for p in model.parameters())
    require(not meta, "model", "parameters with values (model.to_empty(device=...) and weights)", "some on meta")


def snapshot(tree: Mapping[str, Tensor]) -> Tree:
    """Detached copies of every tensor."""
    return {name: t.detach().clone() for name, t in tree.items()}


def to_vector(tree: Mapping[str, Tensor]) -> Tensor:
    """Concatenate a tree into one flat vector, in the order of its names.

    Examples:
        >>> to_vector({"w": torch.ones(2, 2), "b": torch.zeros(1)})
        tensor([1., 1., 1., 1., 0.])
    """
    require(len(tree) > 0, "tree", "at least one tensor", "none")
    return torch.cat([t.reshape(-1) for t in tree.values()])


def from_vector(vector: Tensor, like: Mapping[str, Tensor]) -> Tree:
    """Cut the last axis of ``vector`` into tensors shaped as ``like`` (leading axes are kept)."""
    total = sum(t.numel() for t in like.values())
    require(vector.shape[-1] == total, "vector length", str(total), vector.shape[-1])
    pieces = vector.split([t.numel() for t in like.values()], dim=-1)
    return {
        name: piece.reshape((*vector.shape[:-1], *t.shape))
        for (name, t), piece in zip(like.items(), pieces, strict=True)
    }


def check_same_shapes(tree: Mapping[str, Tensor], like: Mapping[str, Tensor], what: str) -> None:
    """Raise an error that names the first parameter which is missing, unknown or of another shape."""
    for name, t in like.items():
        if name not in tree:
            raise expected(what, f"a tensor for parameter {name!r}", f"only {sorted(tree)}")
        if tree[name].shape != t.shape:
            raise expected(f"{what} of {name!r}", f"shape {tuple(t.shape)}", tuple(tree[name].shape))
    for name in tree:
        if name not in like:
            raise expected(what, f"parameters among {sorted(like)}", name)


def fingerprint(model: nn.Module) -> str:
    """A short hash of the architecture: class names of all modules and shapes of all parameters and buffers."""
    lines = [f"{name}:{_class_of(module).__qualname__}" for name, module in model.named_modules()]
    with looking_at_shapes():
        stored = model.state_dict(keep_vars=True)  # modules may keep things beside tensors in it
    lines += [f"{name}:{tuple(t.shape)}" for name, t in stored.items() if isinstance(t, Tensor)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


_LOOK = threading.local()


@contextmanager
def looking_at_shapes() -> Iterator[None]:
    """While open, state dicts that this thread asks for are for shapes alone: an attached model keeps its sample."""
    before, _LOOK.shapes = looks_at_shapes(), True
    try:
        yield
    finally:
        _LOOK.shapes = before


def looks_at_shapes() -> bool:
    """Whether this thread has such a context open."""
    return getattr(_LOOK, "shapes", False)


def _class_of(module: nn.Module) -> type:
    """The class that the user wrote; `fully_shard` derives one of its own from it and FSDPModule."""
    first, *rest = type(module).__mro__
    return rest[1] if rest[0].__name__ == "FSDPModule" else first


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of state kept about a parameter: float32 for half precisions, the parameter's own otherwise."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for one thread at a time, and afterwards the mode that each module had."""
    with exclusive(model):
        before = {module: module.training for module in model.modules()}
        try:
            model.eval()
            yield
        finally:
            for module, training in before.items():
                module.training = training


@contextmanager
def attributes_kept(model: nn.Module) -> Iterator[None]:
    """Whatever modules set in themselves meanwhile is undone: modes, or activations that exist only within a vmap."""
    before = [(vars(module), vars(module).copy()) for module in model.modules()]
    try:
        yield
    finally:
        for now, then in before:
            for name in now.keys() - then.keys():
                del now[name]
            now.update(then)


@contextmanager
def only_trainable(model: nn.Module, names: Collection[str]) -> Iterator[None]:
    """Only these parameters trainable; afterwards all flags are as they were."""
    flags = [(p, p.requires_grad) for p in model.parameters()]
    try:
        for name, p in model.named_parameters():
            p.requires_grad_(name in names)
        yield
    finally:
        for p, flag in flags:
            p.requires_grad_(flag)
