"""Pruning by signal-to-noise: weights that the data do not hold away from zero are set to it, at a price that is known.

For a Gaussian with precision ess · (h + δ/N), whose mean minimises loss and prior, setting weight j to zero raises the
mean training objective by

    ½ (h_j + δ/N) m_j²  =  ½ SNR_j² / ess        SNR_j = |m_j| / σ_j

and leaves all other weights where they are, if the Gaussian is diagonal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from posterity.errors import expected, require
from posterity.posterior._structure import Structure
from posterity.posterior.diagonal import Diagonal
from posterity.trees import Tree

if TYPE_CHECKING:
    from posterity.posterior._posterior import Posterior

PINNED = 1e16  # precision of a pruned weight: its σ of 1e-8 is lost beside the weights that it is added to


class Cut(NamedTuple):
    """What pruning does to a Gaussian.

    Args:
        structure: The Gaussian given that the pruned weights are zero.
        removed: How many weights were pruned.
        weights: How many there are.
        cost: Estimated rise of the mean training objective, in nats for each example.
        snr: The largest signal-to-noise ratio among the pruned weights.
    """

    structure: Diagonal
    removed: int
    weights: int
    cost: float
    snr: float


class Pruned(NamedTuple):
    """A posterior without its uncertain weights.

    Args:
        posterior: The posterior given that the pruned weights are zero.
        removed: How many weights were pruned.
        weights: How many there are.
        cost: Estimated rise of the mean training objective (loss and prior), in nats for each example.
        snr: The largest signal-to-noise ratio among the pruned weights.
    """

    posterior: Posterior
    removed: int
    weights: int
    cost: float
    snr: float


def signal_to_noise(structure: Diagonal) -> Tree:
    """|m|/σ of every weight."""
    return {name: structure.mean[name].abs() * p.sqrt() for name, p in structure.precision_diagonal().items()}


def cut(structure: Structure, ess: float, fraction: float | None, below: float | None, cost: float | None) -> Cut:
    """Prune a share of the weights, those below a signal-to-noise ratio, or as many as a cost pays for."""
    given = [name for name, value in (("fraction", fraction), ("below", below), ("cost", cost)) if value is not None]
    if len(given) != 1:
        raise expected("prune", "one of fraction, below and cost", given or "none")
    if not isinstance(structure, Diagonal):
        raise expected("posterior", 'a diagonal Gaussian (project("diagonal") makes one)', structure.kind)
    ratios = signal_to_noise(structure)
    flat = torch.cat([ratio.reshape(-1).double() for ratio in ratios.values()])
    ranked, order = flat.sort(stable=True)
    prices = (ranked**2 / (2 * ess)).cumsum(0)
    if fraction is not None:
        require(0 <= fraction <= 1, "fraction", "a share of the weights in [0, 1]", fraction)
        count = round(fraction * len(flat))
    elif below is not None:
        require(below >= 0, "below", "a signal-to-noise ratio >= 0", below)
        count = int((ranked < below).sum())
    else:
        assert cost is not None  # one of the three is given
        require(cost >= 0, "cost", "nats for each example >= 0", cost)
        count = int((prices <= cost).sum())
    gone = torch.zeros(len(flat), dtype=torch.bool, device=flat.device)
    gone[order[:count]] = True
    price, largest = (prices[count - 1].item(), ranked[count - 1].item()) if count else (0.0, 0.0)
    return Cut(_without(structure, gone), count, len(flat), price, largest)


def _without(structure: Diagonal, gone: Tensor) -> Diagonal:
    """The Gaussian given that some weights are zero."""
    mean: Tree = {}
    precision: Tree = {}
    sizes = [t.numel() for t in structure.mean.values()]
    for (name, m), p, mask in zip(
        structure.mean.items(), structure.precision_diagonal().values(), gone.split(sizes), strict=True
    ):
        here = mask.reshape(m.shape)
        mean[name] = m.masked_fill(here, 0.0)
        precision[name] = p.masked_fill(here, PINNED)
    return Diagonal(mean, precision)
