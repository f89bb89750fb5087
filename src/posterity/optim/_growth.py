"""Whether training diverges: gradients and weights that grow without bound."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from posterity.optim._distributed import local

EVERY, LATER = 20, 100  # steps between two looks, in the first ten of them and after those
GRADIENTS, WEIGHTS = 1e3, 10.0  # times their norms at the first step, beyond which both have to be
DIVERGES = (
    "training diverges: gradients are more than 1000 times as large as at the first step, weights more than 10 times; "
    "start again with {}"
)


class Growth:
    """Norms of gradients and weights beside those of the first step.

    A network that starts from good weights may meet much larger gradients, and a linear model may have to reach large
    weights; only where both grow, at two looks in a row, training diverges. Numbers on a GPU are read one look later,
    so that nothing waits for it.
    """

    def __init__(self) -> None:
        self._steps = 0
        self._first: Tensor | None = None
        self._seen: Tensor | None = None  # what the last look found, on its way to the host
        self._times = 0

    def diverges(self, parameters: Iterable[Tensor]) -> bool:
        """Look every so many steps, before the gradients are used."""
        self._steps += 1
        if (self._steps - 1) % (EVERY if self._steps < 10 * EVERY else LATER):
            return False
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return False
        pairs = [(p.grad, p) for p in parameters if p.grad is not None and p.grad.layout == torch.strided]
        if not pairs:
            return False
        norms = torch.stack([_norm(side) for side in zip(*pairs, strict=True)])
        found, self._seen = self._seen, norms.to("cpu", non_blocking=True)
        if not norms.is_cuda:
            found = norms
        if found is None:
            return False
        if self._first is None:
            floor = torch.tensor([torch.finfo(torch.float32).tiny, 1.0], dtype=torch.float32)
            self._first = torch.maximum(found, floor)
            return False
        grown = bool((found > self._first * torch.tensor([GRADIENTS, WEIGHTS], dtype=torch.float32)).all())
        self._times = self._times + 1 if grown else 0
        return self._times == 2


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    norms = torch._foreach_norm([local(t.detach()) for t in tensors])
    return torch.stack([n.to(norms[0].device, torch.float32) for n in norms]).norm()
