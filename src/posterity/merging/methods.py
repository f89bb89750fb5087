"""The methods by name, and merging of state dicts that are in memory."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from posterity.errors import expected, require
from posterity.merging._method import Chunk, Method, check_named, number
from posterity.merging.dare import Dare
from posterity.merging.fisher import FisherAverage
from posterity.merging.gradient_matching import GradientMatching
from posterity.merging.linear import Linear
from posterity.merging.regmean import RegMean
from posterity.merging.slerp import Slerp
from posterity.merging.task_arithmetic import TaskArithmetic
from posterity.merging.ties import Ties
from posterity.trees import Tree, check_same_shapes, state_dtype

METHODS: dict[str, type[Method]] = {
    m.name: m for m in (Linear, TaskArithmetic, FisherAverage, GradientMatching, Ties, Dare, Slerp, RegMean)
}


def method_of(method: str | Method, options: Mapping[str, Any] | None = None) -> Method:
    """A method by name with its options, or the method itself."""
    if isinstance(method, Method):
        require(not options, "options", f"none beside {method!r}, which has its own", sorted(options or ()))
        return method
    if not isinstance(method, str) or method not in METHODS:
        raise expected("method", f"one of {sorted(METHODS)}", method)
    kind = METHODS[method]
    known = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]  # all methods are dataclasses
    for option in options or {}:
        if option not in known:
            raise expected(f"options of {method!r}", f"among {known}" if known else "none", option)
    return kind(**options or {})


def parameter_number(name: str) -> int:
    """The number that identifies a tensor in the keys of noise: it depends on the name alone."""
    return zlib.crc32(name.encode())


def weights_of(weights: Mapping[str, float] | None, names: Sequence[str]) -> list[float]:
    """One weight for each model, 1 where none is given."""
    weights = {} if weights is None else weights
    check_named("weights", weights, object, "number")
    for name in weights:
        if name not in names:
            raise expected("weights", f"names of models among {list(names)}", name)
    return [number(f"weight of {name!r}", weights.get(name, 1.0)) for name in names]


@torch.no_grad()
def merge_state_dicts(
    models: Mapping[str, Mapping[str, Tensor]],
    base: Mapping[str, Tensor] | None = None,
    *,
    method: str | Method = "task_arithmetic",
    weights: Mapping[str, float] | None = None,
    curvatures: Mapping[str, Mapping[str, Tensor]] | None = None,
    base_precision: Mapping[str, Tensor] | None = None,
    **options: Any,
) -> Tree:
    """Merge state dicts that are in memory, tensor by tensor.

    Arithmetic is done in float32 at least, results have the dtype of the base, or of the first model. Integer tensors
    are copied from there.

    Args:
        models: The state dicts, by name.
        base: What they were fine-tuned from; needed by methods on task vectors, refused by averages.
        method: Name of a method, or a `Method`.
        weights: For each model a number, 1 unless given; a negative one removes a task.
        curvatures: For each model N_t H_t, the curvature summed over its data (or Gram matrices for "regmean").
        base_precision: δ₀ + N₀ H₀, zero unless given.
        **options: Options of the method ("density", "convention", ...).

    Returns:
        The merged state dict.

    Examples:
        >>> base = {"w": torch.tensor([1.0, 1.0])}
        >>> tasks = {"a": {"w": torch.tensor([2.0, 1.0])}, "b": {"w": torch.tensor([1.0, 4.0])}}
        >>> merge_state_dicts(tasks, base, method="task_arithmetic")
        {'w': tensor([2., 4.])}
        >>> certain = {"a": {"w": torch.tensor([9.0, 1.0])}, "b": {"w": torch.tensor([1.0, 1.0])}}
        >>> merge_state_dicts(tasks, method="fisher", curvatures=certain)
        {'w': tensor([1.9000, 2.5000])}
    """
    chosen = method_of(method, options)
    check_named("models", models, Mapping, "state dict")
    names = list(models)
    numbers = weights_of(weights, names)
    chosen.check(numbers)
    like = _checked(chosen, models, base, curvatures)
    _check_precision({} if base_precision is None else base_precision, like)
    used = [curvatures[m] for m in names] if curvatures and chosen.needs_curvature else []

    def chunk(name: str) -> Chunk:
        dtype = state_dtype(like[name].dtype)
        precision = (base_precision or {}).get(name, torch.zeros(()))
        return Chunk(
            [models[m][name].to(dtype, copy=True) for m in names],
            numbers,
            None if base is None else base[name].to(dtype),
            [tree[name].to(dtype) for tree in used] if all(name in tree for tree in used) else (),
            precision.to(like[name].device, dtype),
            parameter_number(name),
        )

    def every() -> Iterator[Chunk]:
        return (chunk(name) for name, t in like.items() if t.is_floating_point())

    measured = chosen.measure(every) if chosen.scope == "model" else None
    merged: Tree = {}
    for name, t in like.items():
        if not t.is_floating_point() or not t.numel():
            merged[name] = t.clone()
            continue
        one = chunk(name)
        if chosen.scope == "tensor":
            measured = chosen.measure(lambda: iter((one,)))  # noqa: B023  # called before the loop goes on
        merged[name] = chosen.combine(one, measured).to(t.dtype)
    return merged


def _checked(
    method: Method,
    models: Mapping[str, Mapping[str, Tensor]],
    base: Mapping[str, Tensor] | None,
    curvatures: Mapping[str, Mapping[str, Tensor]] | None,
) -> Mapping[str, Tensor]:
    """The state dict that sets names, shapes and dtypes, after a check that all others fit it."""
    method.check_base(base is not None)
    like = next(iter(models.values())) if base is None else base
    if base is not None:
        check_named("base", base, Tensor)
    for model, tree in models.items():
        check_named(f"model {model!r}", tree, Tensor)
        check_same_shapes(tree, like, f"model {model!r}")
        for name, t in like.items():
            alike = tree[name].is_floating_point() == t.is_floating_point()
            require(alike, f"dtype of {name!r} in {model!r}", f"like {t.dtype}", tree[name].dtype)
    for name, t in like.items():
        fine = not t.is_complex() and (t.itemsize > 1 or not t.is_floating_point())
        require(fine, f"dtype of {name!r}", "real numbers of 16 bits at least", t.dtype)
    if method.needs_curvature:
        curvatures = {} if curvatures is None else curvatures
        check_named("curvatures", curvatures, Mapping, "curvature")
        floating = {name: t for name, t in like.items() if t.is_floating_point()}
        for model in models:
            require(model in curvatures, "curvatures", f"those of model {model!r}", sorted(curvatures))
            given = curvatures[model]
            if method.scope != "whole":
                check_same_shapes(given, floating, f"curvature of {model!r}")
                continue
            for name in (name for name in floating if name in given):
                found, shape = tuple(given[name].shape), method.curvature_shape(tuple(like[name].shape))
                require(found == shape, f"curvature of {model!r} of {name!r}", f"shape {shape}", found)
    return like


def _check_precision(precision: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> None:
    """Refuse a precision of the base under names, or in shapes, that it does not have."""
    check_named("base_precision", precision, Tensor)
    for name, t in precision.items():
        require(name in like, "base_precision", f"parameters among {sorted(like)}", name)
        fine = t.shape in ((), like[name].shape)
        require(fine, f"base_precision of {name!r}", f"shape {tuple(like[name].shape)}", tuple(t.shape))
