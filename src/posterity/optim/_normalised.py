"""Which weights are followed by a batch normalisation, found from their gradients.

Noise in such weights has no honest price. In training the statistics of the batch undo its effect on scale and mean of
a channel; in evaluation the running statistics do not contain it. The loss does not depend on the length of each row of
such a weight, so that its gradient is orthogonal to it:

    Σₖ wₖ ∂ℓ/∂wₖ = 0    in each row,

where the cosine of other rows is of the order of 1/√fan-in. Weights before such a weight change the statistics too, so
that only those behind the last of them, in the order of the parameters, keep noise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from posterity.optim._distributed import sharded

ROUNDING = 1e-5  # of the largest gradient: what a bias has that a normalisation follows
BEHIND = 0.1  # share of the budget where noise is only behind the last batch normalisation
QUIET = 1e6  # times the prior's precision: for weights that get no noise
SHARE = 0.1  # of the cosine that chance would give, below which rows count as orthogonal


class Normalised:
    """The weights and biases before batch normalisations, found in the first steps, while there is no noise."""

    def __init__(self) -> None:
        self._cosines: dict[Tensor, Tensor] = {}  # sums over steps, in units of what chance would give
        self._steps: dict[Tensor, int] = {}
        self._sizes: dict[Tensor, float] = {}  # of the gradients of vectors, as shares of the largest
        self._order: list[Tensor] = []
        self._found: set[Tensor] | None = None

    def state(self, parameters: Iterable[Tensor]) -> list[list[float]]:
        """Of each parameter, plain numbers: whether it was found, and the sums so far."""
        return [
            [float(p in self), float(self._cosines.get(p, 0.0)), self._steps.get(p, 0), self._sizes.get(p, 0.0)]
            for p in parameters
        ]

    @classmethod
    def of(cls, parameters: Sequence[Tensor], state: Iterable[Sequence[float]]) -> Normalised:
        """What `state` gave, with the parameters it was of."""
        known = cls()
        known._order, known._found = list(parameters), set()
        for p, (found, cosine, steps, size) in zip(parameters, state, strict=False):
            if found:
                known._found.add(p)
            if steps:
                known._cosines[p], known._steps[p] = (
                    torch.tensor(cosine, dtype=torch.float32, device=p.device),
                    int(steps),
                )
            elif size:
                known._sizes[p] = size
        return known

    def _known(self) -> set[Tensor]:
        if self._found is None and self._steps:
            self._found = self._decide()
        return self._found or set()

    def __contains__(self, p: Tensor) -> bool:
        return p in self._known()

    def __bool__(self) -> bool:
        return bool(self._known())

    @property
    def share(self) -> float:
        """Of the budget, for noise that is only behind the last of them, or everywhere."""
        return BEHIND if self else 1.0

    def look(self, parameters: Sequence[Tensor]) -> None:
        """Take in the gradients at the mean of all parameters, in their order."""
        self._found, self._order = None, list(parameters)
        largest = max(float(p.grad.norm()) for p in parameters if p.grad is not None)
        for p in parameters:
            if p.grad is None or sharded(p) or not p.numel():
                continue
            if p.ndim < 2:  # a bias before a normalisation has no gradient but for rounding
                size = p.grad.float().norm() / largest
                self._sizes[p] = max(self._sizes.get(p, 0.0), float(size))
                continue
            w, g = p.detach().flatten(1).float(), p.grad.flatten(1).float()
            chance = w.norm(dim=1) * g.norm(dim=1) / w.shape[1] ** 0.5
            cosine = (w * g).sum(1).abs().sum() / chance.sum().clamp_min(1e-30)
            self._cosines[p] = self._cosines.get(p, 0.0) + cosine
            self._steps[p] = self._steps.get(p, 0) + 1

    def _decide(self) -> set[Tensor]:
        flat = {p for p, total in self._cosines.items() if float(total) / self._steps[p] < SHARE}
        last = max((place for place, p in enumerate(self._order) if p in flat), default=-1)
        following = self._order[last + 1 : last + 2] if last >= 0 else []
        return {*self._order[: last + 1], *(p for p in following if self._sizes.get(p, 1.0) < ROUNDING)}
