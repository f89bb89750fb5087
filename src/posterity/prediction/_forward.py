"""Many networks on one batch: a loop over draws, or all draws in one vectorised pass where that is faster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from posterity.batches import Inputs
from posterity.curvature._inputs import tensors
from posterity.prediction._draws import Draws
from posterity.trees import Tree

Forward = Callable[[Tree], Tensor]  # the varying parameters of one draw -> its outputs on one batch

# A vectorised pass saves the overhead of many small operations and pays with larger ones; the limits are where the
# two meet in benchmarks/prediction_cost.py. Fused modules have no vectorised form at all.
ROWS = 128  # rows of a batch that dense layers still profit from
PIXELS = 2**13  # input numbers of a batch that convolutions still profit from
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_FUSED = (nn.RNNBase, nn.MultiheadAttention, nn.TransformerEncoderLayer)


class Sampler:
    """Runs a model under the draws of a posterior."""

    def __init__(self, model: nn.Module, draws: Draws) -> None:
        self._draws = draws
        modules = list(model.modules())
        self._convolutional = any(isinstance(module, _CONVOLUTIONS) for module in modules)
        fused = any(isinstance(module, _FUSED) for module in modules)
        self._vectorises = bool(draws.varying) and (draws.head_only or not fused)

    def outputs(self, forward: Forward, numbers: range, block: Tree, inputs: Inputs) -> Iterator[Tensor]:
        """Outputs of these draws, (draws, batch, ...), some draws at a time."""
        together = self._together(forward, block) if len(numbers) > 1 and self._gains(inputs) else None
        if together is not None:
            yield together
            return
        for row, k in enumerate(numbers):
            with self._draws.masks(k):
                yield forward({name: values[row] for name, values in block.items()}).unsqueeze(0)

    def _gains(self, inputs: Inputs) -> bool:
        if not self._vectorises or self._draws.head_only:
            return self._vectorises  # below a last layer, everything runs once instead of once for each draw
        if self._convolutional:
            return sum(t.numel() for t in tensors(inputs)) <= PIXELS
        return max(_rows(t) for t in tensors(inputs)) <= ROWS

    def _together(self, forward: Forward, block: Tree) -> Tensor | None:
        """All draws at once, or None for a model that cannot be vectorised (it is not asked again)."""
        try:
            return torch.func.vmap(forward)(block)
        except (RuntimeError, ValueError):
            # If something is really wrong, the loop says so in the model's own words.
            self._vectorises = False
            return None


def _rows(t: Tensor) -> int:
    """Vectors in a batch: features are on the last axis of floating-point inputs, tokens have none."""
    return t.numel() // t.shape[-1] if t.is_floating_point() and t.ndim > 1 else t.numel()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and afterwards the mode that each module had."""
    before = {module: module.training for module in model.modules()}
    try:
        model.eval()
        yield
    finally:
        for module, training in before.items():
            module.training = training
