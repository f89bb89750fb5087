"""Pointwise work on large tensors, cut into pieces that fit the cache: a chain of operations reads memory once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

BLOCK = 1 << 17  # elements; a multiple of the noise layout's period, and large enough for torch to use its threads

Views = dict[str, Tensor]


def blocks(tensors: Mapping[str, Tensor]) -> Iterator[tuple[int, Views]]:
    """Yield (start, views) over equally shaped tensors: flat pieces of each, in row-major order.

    The views share the tensors' storage, so writing into them writes into the tensors. Tensors that cannot be cut
    (channels-last, transposed) come whole, which is slower and otherwise the same; so do tensors on an accelerator,
    where launching a kernel costs more than a cache miss.
    """
    first = next(iter(tensors.values()))
    whole = first.numel() <= BLOCK or first.device.type != "cpu"
    if whole or not all(t.is_contiguous() for t in tensors.values()):
        yield 0, dict(tensors)
        return
    flat = {name: t.view(-1) for name, t in tensors.items()}
    for start in range(0, first.numel(), BLOCK):
        yield start, {name: t[start : start + BLOCK] for name, t in flat.items()}


@torch.no_grad()
def swap(a: Tensor, b: Tensor) -> None:
    """Exchange the contents of two tensors of one shape."""
    for _, view in blocks({"a": a, "b": b}):
        old = view["a"].clone()
        view["a"].copy_(view["b"])
        view["b"].copy_(old)
