"""The networks of a posterior, by number: what varies from draw to draw, what stays, and where masks come in."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from posterity.errors import require_whole
from posterity.posterior import Dropout, Posterior, Structure
from posterity.prediction._masks import masked
from posterity.trees import Tree


class Draws:
    """Draws 0 .. count − 1 of a posterior, in the dtype and on the device of a model, which is left alone.

    Each is the same whenever it is asked for, so none is kept. No samples at all means the mean weights.

    Attributes:
        count: How many there are; an ensemble has no more than its members.
        head_only: Whether only the last layer varies.
        nbytes: Size of what varies, in one draw.
    """

    def __init__(self, model: nn.Module, posterior: Posterior, samples: int, seed: int) -> None:
        require_whole("samples", samples, 0)
        structure = posterior.structure
        self._model, self._seed = model, seed
        self._like: dict[str, Tensor] = dict(model.named_parameters()) | dict(model.named_buffers())
        self.head_only = structure.varying is not structure and samples > 0
        self._masking = structure if isinstance(structure, Dropout) and samples > 0 else None
        self._source: Structure | None = None
        if samples > 0 and self._masking is None:
            # The layers below a last-layer posterior need not be copied for every draw.
            self._source = structure.varying
        self.count = max(1, min(samples, structure.distinct_draws or samples))
        self._varying = () if self._source is None else self._source.names
        self.nbytes = sum(self._like[name].nbytes for name in self._varying)

    def weights(self, k: int) -> Tree:
        """The varying parameters of draw k."""
        return self._cast(self._source.sample(k, self._seed)) if self._source is not None else {}

    def stacked(self, numbers: range) -> Tree:
        """The varying parameters of some draws, along a leading axis."""
        like = {name: self._like[name] for name in self._varying}
        block = {name: torch.empty(len(numbers), *t.shape, dtype=t.dtype, device=t.device) for name, t in like.items()}
        for row, k in enumerate(numbers):
            for name, value in self.weights(k).items():
                block[name][row].copy_(value)
        return block

    def masks(self, k: int) -> AbstractContextManager[None]:
        """A context in which the dropout modules of draw k are on."""
        if self._masking is None:
            return nullcontext()
        return masked(self._model, self._masking.rates, self._masking.mask_seed(k, self._seed))

    def _cast(self, tree: Tree) -> Tree:
        # Of small networks, a `to` that changes nothing is a good part of the cost of a draw.
        return {name: t if _kind(t) == _kind(self._like[name]) else t.to(self._like[name]) for name, t in tree.items()}


def _kind(t: Tensor) -> tuple[torch.dtype, torch.device]:
    return t.dtype, t.device
