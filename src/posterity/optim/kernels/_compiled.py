"""Sample and update through torch.compile: the equations are the optimizers' own, the loops are the compiler's.

The first call compiles, which takes some tens of seconds; sizes and numbers are dynamic, so that nothing is compiled
again when a learning rate changes. What is passed in is `.data`: the compiler would otherwise guard on the shape of the
tensor behind a view, and compile again for every number of dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from posterity.noise import HALF, box_muller, hash_pairs, words
from posterity.optim.kernels import _eager
from posterity.optim.kernels._eager import Equations, Precision, update_block
from posterity.optim.kernels._pieces import SMALL, Numbers, Piece, Views
from posterity.trees import state_dtype


def perturb(precision: Precision, pieces: Sequence[Piece], overwritten: list[Piece]) -> None:
    """`_eager.perturb` with each large piece in one loop, noise and all; the rest of its last noise block is a lot's.

    Before its first update a parameter has no state, and code for that would be used once: it is not compiled.
    """
    rest = []
    for piece in pieces:
        has_state = len(piece.tensors) > 2
        from_zero = piece.start == 0  # otherwise it is a shard, whose noise begins within a block
        whole = piece.size // (2 * HALF) * 2 * HALF if has_state and from_zero and _large(piece) else 0
        if whole:
            main = piece.part(0, whole)
            pairs = {name: t.view(-1, 2, HALF) for name, t in main.tensors.items()}
            left, right = ({name: t[:, half].data for name, t in pairs.items()} for half in (0, 1))
            a, b = (torch.tensor(word, dtype=torch.int32, device=left["p"].device) for word in words(piece.key))
            _compiled(_perturb_pairs)(precision, left, right, piece.numbers, a, b)
            overwritten.append(main)
            increment_version(piece.tensors["p"])
        if whole < piece.size:
            rest.append(piece.part(whole, piece.size) if whole else piece)
    _eager.perturb(precision, rest, overwritten)


def update(equations: Equations, pieces: Sequence[Piece], written: Sequence[str]) -> None:
    """`_eager.update` with each large piece in one loop."""
    for piece in filter(_large, pieces):
        views = {name: t.view(-1).data for name, t in piece.tensors.items()}
        _compiled(update_block)(equations, views, piece.numbers)
        increment_version(piece.tensors["p"])
    _eager.update(equations, [piece for piece in pieces if not _large(piece)], written)


def _large(piece: Piece) -> bool:
    return piece.size > SMALL and piece.contiguous


def _perturb_pairs(precision: Precision, left: Views, right: Views, numbers: Numbers, a: Tensor, b: Tensor) -> None:
    """Both halves of all noise blocks, which share their Box-Muller pairs; tensors are (blocks, HALF)."""
    rows, device = left["p"].shape[0], left["p"].device
    counter = torch.arange(rows * HALF, dtype=torch.int32, device=device).view(rows, HALF)
    for view, noise in zip((left, right), box_muller(*hash_pairs(counter, a, b)), strict=True):
        theta = noise.to(state_dtype(view["p"].dtype)) / precision(view, numbers) ** 0.5 + view["p"]
        # A plain buffer.copy_(p) would be reordered after the write to p (torch 2.11 to 2.13); a computed value is not.
        view["buffer"].copy_(torch.where(noise == noise, view["p"], theta))
        view["p"].copy_(theta)


@cache
def _compiled(function: Callable[..., None]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=True, fullgraph=True)
