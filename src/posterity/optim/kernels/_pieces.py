"""Parameters as pieces of pointwise work: large ones in blocks that fit the cache, small ones gathered into lots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from posterity.noise import Key
from posterity.trees import state_dtype

BLOCK = 1 << 17  # elements; a multiple of the noise layout's period, and large enough for torch to use its threads
SMALL = 1 << 14  # below this a tensor costs more in calls than in arithmetic

Views = dict[str, Tensor]
Numbers = dict[str, Any]  # floats, or tensors where a number is measured or scheduled on a device


@dataclass(frozen=True)
class Piece:
    """Equally shaped tensors of one parameter (or of a part of it), and the numbers of its equations."""

    tensors: Views
    numbers: Numbers
    key: Key = field(default=Key(0))  # where its noise belongs
    start: int = 0  # index of its first element within the parameter

    @property
    def size(self) -> int:
        return self.tensors["p"].numel()

    @property
    def contiguous(self) -> bool:
        return all(t.is_contiguous() for t in self.tensors.values())

    def part(self, begin: int, end: int) -> Piece:
        """Elements begin .. end − 1 of a contiguous piece, as views."""
        views = {name: t.view(-1)[begin:end] for name, t in self.tensors.items()}
        return replace(self, tensors=views, start=self.start + begin)


def blocks(piece: Piece) -> Iterator[Piece]:
    """Flat parts of a piece in row-major order; they share its storage, so writing into them writes into it.

    A piece that cannot be cut (channels-last, transposed) comes whole, which is slower and otherwise the same; so does
    one on an accelerator, where launching a kernel costs more than a cache miss.
    """
    if piece.size <= BLOCK or piece.tensors["p"].device.type != "cpu" or not piece.contiguous:
        yield piece
        return
    for begin in range(0, piece.size, BLOCK):
        yield piece.part(begin, begin + BLOCK)


def lots(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Collect small pieces that can be worked on as one: same kinds of tensors and numbers, same device and dtype."""
    waiting: dict[Any, list[Piece]] = {}
    sizes: dict[Any, int] = {}
    for piece in pieces:
        p, size = piece.tensors["p"], piece.size
        limit = SMALL if p.device.type == "cpu" else BLOCK << 7
        if size > limit:
            yield [piece]
            continue
        kind = (p.device, p.dtype, frozenset(piece.tensors), frozenset(piece.numbers))
        waiting.setdefault(kind, []).append(piece)
        sizes[kind] = sizes.get(kind, 0) + size
        if sizes[kind] > 4 * limit:
            sizes[kind] = 0
            yield waiting.pop(kind)
    yield from waiting.values()


def gather(lot: Sequence[Piece]) -> tuple[Views, Numbers]:
    """One flat vector for each kind of tensor; numbers that differ between pieces become vectors too."""
    first = lot[0]
    views = {name: torch.cat([piece.tensors[name].reshape(-1) for piece in lot]) for name in first.tensors}
    return views, {name: _merge([piece.numbers[name] for piece in lot], lot) for name in first.numbers}


def _merge(values: list[Any], lot: Sequence[Piece]) -> Any:
    if not isinstance(values[0], Tensor) and all(value == values[0] for value in values):
        return values[0]
    p = lot[0].tensors["p"]
    column = torch.stack([torch.as_tensor(value, dtype=state_dtype(p.dtype), device=p.device) for value in values])
    return column.repeat_interleave(torch.tensor([piece.size for piece in lot], device=p.device))


def scatter(flat: Tensor, targets: Sequence[Tensor]) -> None:
    """Write a flat vector back into the tensors it was gathered from."""
    pieces = flat.split([t.numel() for t in targets])
    torch._foreach_copy_(list(targets), [piece.view(t.shape) for piece, t in zip(pieces, targets, strict=True)])


def put_back(left: Sequence[Tensor], right: Sequence[Tensor], done: list[int]) -> None:
    """Exchange the contents of tensors, pairwise, so that an interrupt at any instruction leaves a way back.

    Args:
        left: Tensors that are to have the contents of the right ones.
        right: Those; they get the contents of the left ones.
        done: Which parts of the left ones have theirs. It grows here; a second call goes on where the first ended.
    """
    for number, (here, there) in enumerate(_together(left, right)):
        if number < len(done):
            continue
        olds = [t.clone() for t in here]
        torch._foreach_copy_(here, there)
        done.append(number)  # from now on the right ones are not needed
        torch._foreach_copy_(there, olds)


def put_forth(left: Sequence[Tensor], right: Sequence[Tensor], done: list[int]) -> None:
    """Undo `put_back`, with the same care: what is no longer in a left tensor is in the right one."""
    for here, there in reversed(list(_together(left, right))[: len(done)]):
        news = [t.clone() for t in there]
        torch._foreach_copy_(there, here)
        done.pop()
        torch._foreach_copy_(here, news)


def _together(left: Sequence[Tensor], right: Sequence[Tensor]) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """The tensors, large ones in blocks and small ones all at once."""
    small: list[tuple[Tensor, Tensor]] = []
    for a, b in zip(left, right, strict=True):
        if a.numel() <= SMALL:
            small.append((a, b))
            continue
        for piece in blocks(Piece({"p": a, "other": b}, {})):
            yield [piece.tensors["p"]], [piece.tensors["other"]]
    if small:
        yield [a for a, _ in small], [b for _, b in small]
