"""The same through torch.compile: the equations are the optimizers' own, the loops are the compiler's.

The first call compiles, which takes some tens of seconds; sizes and numbers are dynamic, so that nothing is compiled
again when a learning rate changes. What is passed in is `.data`: the compiler would otherwise guard on the shape of the
tensor behind a view, and compile again for every number of dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from posterity.noise import HALF, Key, box_muller, hash_pairs, words
from posterity.optim._blocks import Views
from posterity.optim.kernels._eager import Equations, Numbers, Precision, perturb, update, update_block
from posterity.trees import state_dtype


def perturb_compiled(precision: Precision, tensors: Views, numbers: Numbers, key: Key) -> None:
    """`perturb` in one loop, noise and all."""
    whole = tensors["p"].numel() // (2 * HALF) * 2 * HALF  # the rest of the last noise block is drawn eagerly
    if not whole or not _contiguous(tensors):
        return perturb(precision, tensors, numbers, key)
    flat = {name: t.view(-1) for name, t in tensors.items()}
    pairs = {name: t[:whole].view(-1, 2, HALF) for name, t in flat.items()}
    left, right = ({name: t[:, half].data for name, t in pairs.items()} for half in (0, 1))
    a, b = (torch.tensor(word, dtype=torch.int32, device=tensors["p"].device) for word in words(key))
    _compiled(_perturb_pairs)(precision, left, right, numbers, a, b)
    increment_version(tensors["p"])
    if whole < tensors["p"].numel():
        perturb(precision, {name: t[whole:] for name, t in flat.items()}, numbers, key, offset=whole)
    return None


def update_compiled(equations: Equations, tensors: Views, numbers: Numbers) -> None:
    """`update` in one loop."""
    if not _contiguous(tensors):
        return update(equations, tensors, numbers)
    _compiled(update_block)(equations, {name: t.view(-1).data for name, t in tensors.items()}, numbers)
    increment_version(tensors["p"])
    return None


def _perturb_pairs(precision: Precision, left: Views, right: Views, numbers: Numbers, a: Tensor, b: Tensor) -> None:
    """Both halves of all noise blocks, which share their Box-Muller pairs; tensors are (blocks, HALF)."""
    rows, device = left["p"].shape[0], left["p"].device
    counter = torch.arange(rows * HALF, dtype=torch.int32, device=device).view(rows, HALF)
    for view, noise in zip((left, right), box_muller(*hash_pairs(counter, a, b)), strict=True):
        dtype = state_dtype(view["p"].dtype)
        theta = noise.to(dtype) / precision(view, numbers) ** 0.5 + view["p"]
        # A plain buffer.copy_(p) would be reordered after the write to p (torch 2.11 to 2.13); a computed value is not.
        view["buffer"].copy_(torch.where(noise == noise, view["p"], theta))
        view["p"].copy_(theta)


def _contiguous(tensors: Views) -> bool:
    return all(t.is_contiguous() for t in tensors.values())


@cache
def _compiled(function: Callable[..., None]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=True, fullgraph=True)
