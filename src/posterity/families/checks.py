"""Parameters at the edge: tensors of one dtype, finite, of the right shape, batch axes broadcast."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from posterity.errors import expected, require
from posterity.linalg import cholesky, symmetrise


def parameters(named: Mapping[str, tuple[Any, int]]) -> list[Tensor]:
    """Turn ``{name: (value, event axes)}`` into finite floating tensors of one dtype with one batch shape.

    Python numbers and integers become float64, on the device of the first tensor; the widest dtype wins.

    Examples:
        >>> shape, rate = parameters({"shape": ([1.0, 2.0], 0), "rate": (3, 0)})
        >>> rate
        tensor([3., 3.], dtype=torch.float64)
    """
    device = next((value.device for value, _ in named.values() if isinstance(value, Tensor)), None)
    tensors = {name: _floating(name, value, dims, device) for name, (value, dims) in named.items()}
    dtype = reduce(torch.promote_types, (t.dtype for t in tensors.values()))
    batches = {name: t.shape[: t.ndim - named[name][1]] for name, t in tensors.items()}
    try:
        batch = torch.broadcast_shapes(*batches.values())
    except RuntimeError:
        shapes = {name: tuple(shape) for name, shape in batches.items()}
        raise expected("batch shapes", "shapes that broadcast", shapes) from None
    require(0 not in batch, "batch", "at least one member", f"shape {tuple(batch)}")
    return [t.to(dtype).expand(batch + t.shape[t.ndim - named[name][1] :]) for name, t in tensors.items()]


def _floating(name: str, value: Any, dims: int, device: torch.device | None) -> Tensor:
    try:
        tensor = value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=torch.float64, device=device)
    except (TypeError, ValueError):
        raise expected(name, "numbers", value) from None
    require(not tensor.is_complex(), name, "real numbers", tensor.dtype)
    tensor = tensor if tensor.is_floating_point() else tensor.to(torch.float64)
    require(tensor.ndim >= dims, name, f"at least {dims} axes", f"shape {tuple(tensor.shape)}")
    if not torch.isfinite(tensor).all():
        raise expected(name, "finite entries", "NaN or infinity")
    return tensor


def between(name: str, values: Tensor, low: float, high: float = float("inf")) -> None:
    """Raise unless every value lies strictly between the two limits."""
    outside = ~((values > low) & (values < high))
    if outside.any():
        worst = values.detach()[outside].flatten()[0].item()
        raise expected(name, f"values in the open interval ({low:g}, {high:g})", worst)


def positive_definite(name: str, matrix: Tensor, dim: int | None = None) -> tuple[Tensor, Tensor]:
    """The symmetric matrix and its Cholesky factor; an error unless square (d, d), symmetric, positive definite."""
    dim = matrix.shape[-1] if dim is None else dim
    require(matrix.shape[-2:] == (dim, dim), name, f"a matrix ({dim}, {dim})", f"shape {tuple(matrix.shape)}")
    require(dim > 0, name, "at least one dimension", f"shape {tuple(matrix.shape)}")
    return symmetric(name, matrix), cholesky(matrix, name)


def symmetric(name: str, matrix: Tensor) -> Tensor:
    """The matrix without its rounding; an error where it is not symmetric but for that."""
    skew, size = ((m.detach().abs()).amax((-2, -1)) for m in (matrix - matrix.mT, matrix))
    # Rounding is averaged away; anything larger is a mistake that averaging would hide.
    if (skew > 1e-4 * size).any():
        raise expected(name, "a symmetric matrix", f"entries that differ from their mirror by {skew.amax().item():.3g}")
    return symmetrise(matrix)
