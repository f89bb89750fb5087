"""The sample and the update of one parameter in plain tensor operations, a cache-sized block at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from posterity.noise import Key, normal
from posterity.optim._blocks import Views, blocks
from posterity.trees import state_dtype

Numbers = dict[str, Any]  # floats, or 0-dimensional tensors where a number is measured or scheduled on a device
Precision = Callable[[Mapping[str, Tensor], Numbers], Tensor | float]
Equations = Callable[[Views, Tensor, Tensor, Tensor | None, Numbers], None]


def perturb(precision: Precision, tensors: Views, numbers: Numbers, key: Key, offset: int = 0) -> None:
    """buffer ← m and p ← m + ε/√precision; whatever goes wrong, what was overwritten is put back.

    Args:
        precision: Posterior precision of a block.
        tensors: `p`, `buffer` and the state of the parameter.
        numbers: The numbers of the parameter's equations.
        key: Where the noise belongs.
        offset: Index of the first element within the parameter.
    """
    p = tensors["p"]
    dtype, overwritten = state_dtype(p.dtype), list[Views]()
    try:
        for start, view in blocks(tensors):
            mean = view["buffer"].copy_(view["p"]).to(dtype)
            noise = normal(key, mean.numel(), start=offset + start, device=p.device, dtype=dtype).view_as(mean)
            noise.div_(precision(view, numbers) ** 0.5)
            overwritten.append(view)
            torch.add(mean, noise, out=view["p"]) if p.dtype == dtype else view["p"].copy_(noise.add_(mean))
    except BaseException:
        for view in overwritten:
            view["p"].copy_(view["buffer"])
        raise


def update(equations: Equations, tensors: Views, numbers: Numbers) -> None:
    """Average the statistics of a parameter and update it."""
    for _, view in blocks(tensors):
        update_block(equations, view, numbers)


def update_block(equations: Equations, view: Views, numbers: Numbers) -> None:
    """The update of one block; half precisions are updated in float32."""
    mean = view["p"].to(state_dtype(view["p"].dtype))
    gradient, product = statistics(view, mean, numbers)
    equations(view, mean, gradient, product, numbers)
    if mean is not view["p"]:
        view["p"].copy_(mean)


def statistics(view: Views, mean: Tensor, numbers: Numbers) -> tuple[Tensor, Tensor | None]:
    """The averaged gradient and the averaged product of noise and gradient (None without noise)."""
    gradient = view["gradient"].to(mean.dtype) if "gradient" in view else torch.zeros_like(mean)
    if "sample" not in view:
        return gradient, None
    product = (view["sample"].to(mean.dtype) - mean).mul_(gradient)
    if "product" in view:
        product.add_(view["product"] * numbers["factor"])
    if "gradients" in view:
        gradient = gradient + view["gradients"] * numbers["factor"]
    if "estimates" in numbers:
        return gradient / numbers["estimates"], product.div_(numbers["estimates"])
    return gradient, product
