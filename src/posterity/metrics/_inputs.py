"""What every metric accepts: arrays become float64 tensors on the CPU, and what cannot be right is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from posterity.batches import Array
from posterity.errors import expected, require, require_whole

SUM_TOLERANCE = 1e-2  # half-precision probabilities over many classes miss one by this much


def numbers(array: Array, what: str, infinite: bool = False) -> Tensor:
    """At least one number, as float64; finite by default."""
    values = _double(array, what)
    require(values.numel() > 0, what, "at least one value", f"shape {tuple(values.shape)}")
    require(not bool(values.isnan().any()), what, "numbers", f"{int(values.isnan().sum())} NaN")
    finite = infinite or not bool(values.isinf().any())
    require(finite, what, "finite numbers", f"{int(values.isinf().sum())} infinite")
    return values


def _double(array: Array, what: str) -> Tensor:
    if isinstance(array, Tensor):
        require(not array.is_complex(), what, "real numbers", array.dtype)
        return array.detach().to("cpu", torch.float64)
    if not isinstance(array, np.ndarray):
        raise expected(what, "a tensor or an array", type(array).__name__)
    require(array.dtype.kind in "biufO", what, "real numbers", array.dtype)
    try:
        return torch.from_numpy(np.array(array, dtype=np.float64))  # a copy: any strides, any byte order
    except (TypeError, ValueError):
        raise expected(what, "real numbers", "other objects") from None


def count(value: Any, what: str) -> int:
    """A whole number of at least one."""
    require_whole(what, value)
    return int(value)


def paired(array: Array, other: Tensor, what: str, other_name: str, infinite: bool = False) -> Tensor:
    """Numbers in the shape of `other`."""
    values = numbers(array, what, infinite)
    shapes = f"shape {tuple(other.shape)} like {other_name}"
    require(values.shape == other.shape, what, shapes, tuple(values.shape))
    return values


def flags(array: Array, other: Tensor, what: str, other_name: str) -> Tensor:
    """Booleans (or zeros and ones) in the shape of `other`, with both kinds among them."""
    values = paired(array, other, what, other_name)
    require(bool(((values == 0) | (values == 1)).all()), what, "only 0 and 1", _extent(values))
    require(0 < values.sum().item() < values.numel(), what, "both 0 and 1", _extent(values))
    return values.bool()


def whole(array: Array, what: str) -> Tensor:
    """Whole numbers, as int64 (floats that hold whole numbers are welcome)."""
    values = numbers(array, what)
    require(bool((values == values.round()).all()), what, "whole numbers", _extent(values))
    return values.long()


def classified(probs: Array, labels: Array, ignore_index: int | None = None) -> tuple[Tensor, Tensor]:
    """Probabilities (N, K) and labels (N,) from any leading shape; binary ones become two columns."""
    p, y = numbers(probs, "probs"), whole(labels, "labels")
    p = torch.stack((1 - p, p), -1) if p.shape == y.shape else p
    require(p.ndim > 1 and p.shape[-1] > 1, "probs", "classes on the last axis", f"shape {tuple(p.shape)}")
    require(p.shape[:-1] == y.shape, "labels", f"shape {tuple(p.shape[:-1])} (classes last)", tuple(y.shape))
    p, y = p.reshape(-1, p.shape[-1]), y.reshape(-1)
    if ignore_index is not None:
        p, y = p[y != ignore_index], y[y != ignore_index]
        require(len(y) > 0, "labels", f"some label other than {ignore_index}", "none")
    require(bool(((p >= -1e-6) & (p <= 1 + 1e-6)).all()), "probs", "values in [0, 1]", _extent(p))
    sums = p.sum(-1)
    require(bool(((sums - 1).abs() < SUM_TOLERANCE).all()), "probs", "rows that sum to one", f"sums {_extent(sums)}")
    in_range(y, p.shape[-1])
    return p.clamp(0.0, 1.0), y


def in_range(labels: Tensor, classes: int, what: str = "labels") -> None:
    """Raise unless all labels lie in 0..classes − 1."""
    inside = bool(((labels >= 0) & (labels < classes)).all())
    require(inside, what, f"integers in 0..{classes - 1}", _extent(labels))


def _extent(values: Tensor) -> str:
    return f"from {values.min().item():g} to {values.max().item():g}"
