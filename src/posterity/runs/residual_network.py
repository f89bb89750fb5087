"""The network for amounts of a table: a ridge regression, and the members of a `TableNetwork` for what it leaves."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posterity.runs.baseline import likeliest_ridge
from posterity.runs.columns import BENT, BIN, LIMIT
from posterity.runs.table_network import TableNetwork

_BINS = 0.3  # prior scale of a bin's weight, in those of other inputs
_FARTHEST = 30.0  # standard deviations, beyond which a number counts as no larger
_MOST = 1000  # inputs or rows, whichever are fewer, up to which a ridge regression is quick


class ResidualNetwork(nn.Module):
    """A linear model that a network corrects.

        f(x) = (W₀ + W) u(x) + b₀ + g(x)

    u(x) are the inputs with numbers that were bent towards ±LIMIT straight again, g is a `TableNetwork` whose last
    weights start at zero. `start_from_ridge` sets W₀ and b₀, which do not learn; W starts at zero and learns with g. A
    training that stops early has learnt little beyond the linear model: this is how far cross-validation goes where
    targets are nearly linear in the columns.

    Args:
        inputs: Numbers of an example.
        outputs: Outputs.
        hidden: Widths of the hidden layers of g.
    """

    bent: Tensor
    start: Tensor
    level: Tensor

    def __init__(self, inputs: int, outputs: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.register_buffer("bent", torch.zeros(inputs))
        self.register_buffer("start", torch.zeros(outputs, inputs))
        self.register_buffer("level", torch.zeros(outputs))
        self.straight = nn.Linear(inputs, outputs, bias=False)
        self.rest = TableNetwork(inputs, outputs, hidden)
        for weight in (self.straight.weight, self.rest.head.weight):
            nn.init.zeros_(weight)

    def forward(self, x: Tensor) -> Tensor:
        """Inputs (B, ...) to outputs (B, K)."""
        u = self.unbent(x)
        return F.linear(u, self.start, self.level) + self.straight(u) + self.rest(x)

    def unbent(self, x: Tensor) -> Tensor:
        """u(x): z from z / √(1 + z²/LIMIT²) where inputs were bent, the others as they are."""
        x = x.flatten(1)
        least = (LIMIT / _FARTHEST) ** 2
        return x / (1 - self.bent * (x / LIMIT).square()).clamp_min(least).sqrt()


def start_from_ridge(network: ResidualNetwork, sorts: Sequence[str], x: Tensor, y: Tensor) -> None:
    """Let a network start from the ridge regression of its own training rows with the largest evidence.

    Args:
        network: The network.
        sorts: What each input is, see `Preprocessing.sorts`.
        x: Inputs to learn from, (N, ...).
        y: Their targets, (N, 1).
    """
    bins = torch.tensor([sort == BIN for sort in sorts])
    network.bent.copy_(torch.tensor([float(sort == BENT) for sort in sorts]))
    u = network.unbent(x).cpu().double()
    scale = torch.where(bins, _BINS, 1.0).to(u)
    if min(u.shape) > _MOST:
        scale = scale * ~bins  # a linear function of the numbers alone
    used = scale.nonzero().flatten()
    if min(len(used), len(u)) > _MOST:
        return
    weights, level = likeliest_ridge(u[:, used] * scale[used], y.cpu().double())
    network.start[:, used] = (weights.T * scale[used]).to(network.start)
    network.level.copy_(level)
