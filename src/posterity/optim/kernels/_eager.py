"""Sample and update in plain tensor operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from posterity.noise import normal, normals
from posterity.optim.kernels._pieces import Numbers, Piece, Views, blocks, gather, lots, scatter
from posterity.trees import state_dtype

Precision = Callable[[Mapping[str, Tensor], Numbers], Tensor | float]
Equations = Callable[[Views, Tensor, Tensor, Tensor | None, Numbers], None]


def perturb(precision: Precision, pieces: Sequence[Piece], overwritten: list[Piece]) -> None:
    """buffer ← m and p ← m + ε/√precision.

    Args:
        precision: Posterior precision of a piece.
        pieces: Tensors `p`, `buffer` and the state of each parameter.
        overwritten: Grows by each piece whose p no longer holds the mean.
    """
    for lot in lots(pieces):
        if len(lot) > 1:
            _perturb_lot(precision, lot, overwritten)
            continue
        for piece in blocks(lot[0]):
            view = piece.tensors
            p, dtype = view["p"], state_dtype(view["p"].dtype)
            mean = view["buffer"].copy_(p).to(dtype)
            noise = normal(piece.key, piece.size, start=piece.start, device=p.device, dtype=dtype).view_as(mean)
            noise.div_(precision(view, piece.numbers) ** 0.5)
            overwritten.append(piece)
            torch.add(mean, noise, out=p) if p.dtype == dtype else p.copy_(noise.add_(mean))


def _perturb_lot(precision: Precision, lot: list[Piece], overwritten: list[Piece]) -> None:
    view, numbers = gather(lot)
    p, dtype = view["p"], state_dtype(view["p"].dtype)
    keys, counts, starts = zip(*((piece.key, piece.size, piece.start) for piece in lot), strict=True)
    noise = normals(keys, counts, starts, device=p.device, dtype=dtype)
    theta = noise.div_(precision(view, numbers) ** 0.5).add_(p)
    scatter(p, [piece.tensors["buffer"] for piece in lot])
    overwritten.extend(lot)
    scatter(theta, [piece.tensors["p"] for piece in lot])


def update(equations: Equations, pieces: Sequence[Piece], written: Sequence[str]) -> None:
    """Average the statistics of each parameter and update it.

    Args:
        equations: Update of mean and state, in place.
        pieces: Tensors `p` and the state of each parameter, with what `Samples.evidence` gives.
        written: Names of the state that the equations change.
    """
    for lot in lots(pieces):
        if len(lot) == 1:
            for piece in blocks(lot[0]):
                update_block(equations, piece.tensors, piece.numbers)
            continue
        view, numbers = gather(lot)
        update_block(equations, view, numbers)
        for name in ("p", *(name for name in written if name in view)):
            scatter(view[name], [piece.tensors[name] for piece in lot])


def update_block(equations: Equations, view: Views, numbers: Numbers) -> None:
    """The update of one block; half precisions are updated in float32."""
    mean = view["p"].to(state_dtype(view["p"].dtype))
    gradient, product = statistics(view, mean, numbers)
    equations(view, mean, gradient, product, numbers)
    if mean is not view["p"]:
        view["p"].copy_(mean)


def average(piece: Piece) -> tuple[Tensor, Tensor]:
    """`statistics` of a parameter with noise, block by block; they overwrite the sums that it has."""
    p, dtype = piece.tensors["p"], state_dtype(piece.tensors["p"].dtype)
    given = {"gradients", "estimates"}.isdisjoint((*piece.tensors, *piece.numbers))  # there is nothing to average
    names = ("product",) if given else ("product", "gradients")
    found = {name: piece.tensors[name] if name in piece.tensors else torch.empty_like(p, dtype=dtype) for name in names}
    results = {f"averaged {name}": t for name, t in found.items()}
    for part in blocks(replace(piece, tensors=piece.tensors | results)):
        view = part.tensors
        gradient, product = statistics(view, view["p"].to(dtype), part.numbers)
        assert product is not None
        view["averaged product"].copy_(product)
        if not given:
            view["averaged gradients"].copy_(gradient)
    return piece.tensors["gradient"] if given else found["gradients"], found["product"]


def statistics(view: Views, mean: Tensor, numbers: Numbers) -> tuple[Tensor, Tensor | None]:
    """The averaged gradient and the averaged product of noise and gradient (None without noise)."""
    gradient = view["gradient"].to(mean.dtype) if "gradient" in view else torch.zeros_like(mean)
    if "sample" in view:
        product = (view["sample"].to(mean.dtype) - mean).mul_(gradient)
        if "product" in view:
            product.add_(view["product"] * numbers["factor"])
    elif "product" in view:  # of all samples, taken when their gradients came
        product = view["product"] * numbers["factor"]
    else:
        return gradient, None
    if "gradients" in view:
        gradient = gradient + view["gradients"] * numbers["factor"]
    if "estimates" in numbers:
        return gradient / numbers["estimates"], product.div_(numbers["estimates"])
    return gradient, product
