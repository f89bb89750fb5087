"""What is known about one network's parameters in terms of another that has some of them, perhaps with more rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from posterity.adaptation.past import Past
from posterity.posterior import Diagonal, Full
from posterity.trees import Tree, from_vector, to_vector, trainable


def fits(old: Tensor, new: Tensor) -> bool:
    """The same shape, or one with more rows."""
    return old.ndim == new.ndim and old.shape[1:] == new.shape[1:] and old.shape[:1] <= new.shape[:1]


def padded(tree: Tree, like: Mapping[str, Tensor], names: Sequence[str]) -> Tree:
    """Zeros for the rows that are new."""
    found = {}
    for name in names:
        wide = torch.zeros_like(like[name], requires_grad=False)
        wide[(slice(len(tree[name])),) if wide.ndim else ()] = tree[name].to(wide)
        found[name] = wide
    return found


def carried(past: Past, model: nn.Module) -> Past:
    """The past in terms of another network: parameters that both have, and old outputs."""
    there, rest = trainable(model), past.rest
    names = [name for name in rest.names if name in there and fits(rest.mean[name], there[name])]
    pull = padded(past.pull, there, names)
    if not names:
        return replace(past, rest=_nothing(there), pull=pull)
    mean = padded(rest.mean, there, names)
    if isinstance(rest, Full) and len(names) == len(rest.names):
        return replace(past, rest=Full(mean, widened(rest.precision, rest.mean, mean)), pull=pull)
    return replace(past, rest=Diagonal(mean, padded(rest.precision_diagonal(), there, names)), pull=pull)


def widened(matrix: Tensor, before: Tree, after: Tree) -> Tensor:
    """A matrix over some parameters in the place that they have among others, some with more rows; zeros elsewhere."""
    size = sum(m.numel() for m in after.values())
    place = from_vector(torch.arange(size, device=matrix.device), after)
    old = to_vector({name: place[name][: len(m)] if m.ndim else place[name] for name, m in before.items()})
    wide = matrix.new_zeros(size, size)
    wide[old.unsqueeze(1), old] = matrix
    return wide


def _nothing(like: Mapping[str, Tensor]) -> Diagonal:
    return Diagonal({n: torch.zeros_like(p) for n, p in like.items()}, {n: torch.zeros(()) for n in like})
