"""Tensors cut into views that fit the cache: a chain of pointwise operations then costs one trip to memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

BLOCK = 1 << 17  # elements; a multiple of the noise layout's period


def blocks(tensors: Mapping[str, Tensor]) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """Yield (start, views) over equally shaped tensors: flat pieces of each, in row-major order.

    The views share the tensors' storage, so writing into them writes into the tensors. Tensors that cannot be cut
    (channels-last, transposed, 0-dimensional) come whole, which is slower and otherwise the same.
    """
    first = next(iter(tensors.values()))
    if first.numel() <= BLOCK or not all(t.is_contiguous() for t in tensors.values()):
        yield 0, dict(tensors)
        return
    flat = {name: t.view(-1) for name, t in tensors.items()}
    for start in range(0, first.numel(), BLOCK):
        yield start, {name: t[start : start + BLOCK] for name, t in flat.items()}


def copy_blocks(source: Tensor, target: Tensor, stop: int) -> None:
    """Copy the first ``stop`` elements, in row-major order."""
    if stop >= target.numel():
        target.copy_(source)
    elif stop > 0:
        target.view(-1)[:stop].copy_(source.view(-1)[:stop])


@torch.no_grad()
def swap(a: Tensor, b: Tensor) -> None:
    """Exchange the contents of two tensors of one shape."""
    for _, view in blocks({"a": a, "b": b}):
        old = view["a"].clone()
        view["a"].copy_(view["b"])
        view["b"].copy_(old)
