"""Per-example Jacobian rows by torch.func, for parameters that no closed form covers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from posterity.inputs import Inputs, call, length, over_tensors, take, tensors
from posterity.likelihoods import classes_last
from posterity.trees import Tree


@contextmanager
def transformable() -> Iterator[None]:
    """Where derivatives are batched or taken twice.

    Attention is written out in matrix products, since its fused kernels have no such derivatives; and torch's warning
    about operations that vmap runs one by one is silenced.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop because we have not yet implemented")
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def rows(
    model: nn.Module, parameters: Mapping[str, Tensor], inputs: Inputs, v: Tensor, class_axis: int | None = -1
) -> Tree:
    """J_nᵀ v_rn for each example and root: output directions v (R, B, ..., K) to rows (R, B, numel) by name."""

    def one(v_n: Tensor, *x: Tensor) -> Tree:
        pull = vjp(_output(model, inputs, x, class_axis), _detached(parameters))[1]
        each = [pull(v_rn)[0] for v_rn in v_n]  # a vmap in the other gives wrong gradients of nn.PReLU
        return {name: torch.stack([g[name] for g in each]) for name in parameters}

    leaves = list(tensors(inputs))
    with transformable():
        try:
            found = vmap(one, in_dims=(1, *[0] * len(leaves)))(v, *leaves)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # an operation that vmap does not know (recurrent layers, custom functions)
            found = _rows_one_by_one(model, parameters, inputs, v, class_axis)
    return {name: g.transpose(0, 1).reshape(*v.shape[:2], -1) for name, g in found.items()}


def tangents(model: nn.Module, parameters: Mapping[str, Tensor], inputs: Inputs, directions: Tree) -> Tensor:
    """J_n δ_n for each example: directions (B, *shape) by name to changes of the outputs (B, ..., K)."""
    directions = {name: direction.to(parameters[name]) for name, direction in directions.items()}

    def one(direction: Tree, *x: Tensor) -> Tensor:
        f, pull = vjp(_output(model, inputs, x), _detached(parameters))[:2]
        return vjp(lambda u: pull(u)[0], torch.zeros_like(f))[1](direction)[0]

    with transformable():
        try:
            return vmap(one)(directions, *tensors(inputs))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            return _tangents_one_by_one(model, parameters, inputs, directions)


def tangent(outputs: Tensor, parameters: Sequence[Tensor], along: Sequence[Tensor]) -> Tensor:
    """J Δ from the graph of the outputs, shaped as they are.

    Jᵀu is linear in u: its derivative in u, against Δ, is JΔ. Forward mode would do the same for fewer operations.
    """
    with torch.enable_grad():
        u = torch.zeros_like(outputs, requires_grad=True)
        pulled = torch.autograd.grad(outputs, parameters, u, create_graph=True, materialize_grads=True)
    reached = [(g, delta.to(g)) for g, delta in zip(pulled, along) if g.requires_grad]
    if not reached:
        return torch.zeros_like(outputs).detach()
    changes = torch.autograd.grad([g for g, _ in reached], u, [delta for _, delta in reached], materialize_grads=True)
    return changes[0]


def _output(
    model: nn.Module, inputs: Inputs, x: Sequence[Tensor], class_axis: int | None = -1
) -> Callable[[Tree], Tensor]:
    """The output of the single example x, nested as `inputs`, as a function of some of the parameters."""
    fixed = _detached(dict(model.named_parameters()))

    def output(some: Tree) -> Tensor:
        leaves = iter(x)
        single = over_tensors(lambda _: next(leaves).unsqueeze(0), inputs)
        f = call(lambda *args, **kwargs: functional_call(model, {**fixed, **some}, args, kwargs), single)
        return classes_last(f, class_axis)[0]

    return output


def _detached(parameters: Mapping[str, Tensor]) -> Tree:
    return {name: p.detach() for name, p in parameters.items()}


def _rows_one_by_one(
    model: nn.Module, parameters: Mapping[str, Tensor], inputs: Inputs, v: Tensor, class_axis: int | None
) -> Tree:
    every = []
    for n in range(length(inputs)):
        with torch.enable_grad():
            f = classes_last(call(model, take(inputs, slice(n, n + 1))), class_axis)
        # What one example alone does not use, such as an expert that another one is sent to, has gradient zero.
        every += [
            torch.autograd.grad(f[0], list(parameters.values()), v_rn, retain_graph=True, materialize_grads=True)
            for v_rn in v[:, n]
        ]
    shape = (v.shape[1], v.shape[0])
    return {name: torch.stack(g).unflatten(0, shape) for name, g in zip(parameters, zip(*every))}


def _tangents_one_by_one(
    model: nn.Module, parameters: Mapping[str, Tensor], inputs: Inputs, directions: Tree
) -> Tensor:
    changes = []
    for n in range(length(inputs)):
        with torch.enable_grad():
            f = call(model, take(inputs, slice(n, n + 1)))
        changes.append(tangent(f, list(parameters.values()), [directions[name][n] for name in parameters])[0])
    return torch.stack(changes)
