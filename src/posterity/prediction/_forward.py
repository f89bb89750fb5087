"""Many networks on some batches: a loop over networks, or several in one vectorised pass where that is faster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor, nn

from posterity.inputs import Inputs, length, take, tensors
from posterity.prediction._slots import Slots
from posterity.trees import Tree, attributes_kept

Forward = Callable[[Inputs], Tensor]  # a batch -> outputs, under the weights that are in the model

# A vectorised pass saves the overhead of many small operations and pays with larger ones; the limits are well below
# where the two meet in benchmarks/prediction_cost.py. Convolutions gain nothing, fused modules have no vectorised form.
ROWS = 512  # vectors in a batch
WEIGHTS = 2**17  # bytes of what varies in one network
WORK = 2**23  # one times the other
STACK = 2**26  # bytes of what varies in one pass, and of its outputs
_NEVER = (nn.modules.conv._ConvNd, nn.RNNBase, nn.MultiheadAttention, nn.TransformerEncoderLayer)


class Networks(Protocol):
    """Numbered networks that share a model."""

    count: int
    nbytes: int
    head_only: bool

    def weights(self, k: int) -> Tree:
        """What varies, in network k."""

    def stacked(self, numbers: range) -> Tree:
        """What varies, in several networks, along a leading axis."""

    def masks(self, k: int) -> AbstractContextManager[None]:
        """A context in which the dropout modules of network k are on."""


class Runner:
    """Runs all networks on all batches of a group, in the way that suits its first batch.

    Networks are in the outer loop, so that each is drawn once for the whole group.
    """

    def __init__(self, model: nn.Module, networks: Networks) -> None:
        self._model, self._networks, self._slots = model, networks, Slots(model)
        self._vectorises = True

    def __call__(self, forward: Forward, group: Sequence[Inputs]) -> Iterator[tuple[int, Tensor]]:
        """Outputs (networks, batch, ...) of some networks, with the position of their batch in the group."""
        at_once = self._block_size(forward, group[0]) if self._vectorises else 1
        if at_once == 1:
            yield from self._looped(forward, group)
            return
        for start in range(0, self._networks.count, at_once):
            block = self._networks.stacked(range(start, min(start + at_once, self._networks.count)))
            for position, inputs in enumerate(group):
                yield position, self._outputs(forward, block, inputs)

    def _looped(self, forward: Forward, group: Sequence[Inputs]) -> Iterator[tuple[int, Tensor]]:
        for k in range(self._networks.count):
            with self._slots.filled(self._networks.weights(k)):
                for position, inputs in enumerate(group):
                    with self._networks.masks(k):
                        yield position, forward(inputs).unsqueeze(0)

    def _outputs(self, forward: Forward, block: Tree, inputs: Inputs) -> Tensor:
        """Outputs (networks, batch, ...) of a block of networks."""

        def one(weights: Tree) -> Tensor:
            with self._slots.filled(weights):
                return forward(inputs)

        if self._vectorises:
            try:
                with attributes_kept(self._model):
                    return torch.func.vmap(one)(block)
            except (RuntimeError, ValueError):  # perhaps in a later batch, where it takes another path
                self._vectorises = False
        # If something is really wrong, the loop says so in the model's own words.
        rows = range(len(next(iter(block.values()))))
        return torch.stack([one({name: t[row] for name, t in block.items()}) for row in rows])

    def _block_size(self, forward: Forward, inputs: Inputs) -> int:
        """How many networks to run in one pass; 1 means a loop."""
        networks = self._networks
        if networks.nbytes == 0:
            return 1
        at_once = max(1, min(networks.count, STACK // networks.nbytes))
        if networks.head_only:  # everything below the last layer runs once for the whole block
            return max(1, min(at_once, STACK // max(1, _output_bytes(forward, inputs))))
        rows = max(_rows(t) for t in tensors(inputs))
        small = rows <= ROWS and networks.nbytes <= WEIGHTS and rows * networks.nbytes <= WORK
        return at_once if small and not any(isinstance(m, _NEVER) for m in self._model.modules()) else 1


@torch.no_grad()
def _output_bytes(forward: Forward, inputs: Inputs) -> int:
    """Bytes of one network's outputs: those of one example times their number, where examples can be told apart."""
    try:
        return length(inputs) * forward(take(inputs, slice(0, 1))).nbytes
    except Exception:  # a module may be given numbers, or masks that all examples share
        return forward(inputs).nbytes


def _rows(t: Tensor) -> int:
    """Vectors in a batch: features are on the last axis of floating-point inputs, tokens have none."""
    return t.numel() // t.shape[-1] if t.is_floating_point() and t.ndim > 1 else t.numel()
