"""Which examples to remember: the most uncertain, the most influential, random ones, or those far from each other.

Weights make the chosen examples represent all: within each class N_c/M_c by default, so that they sum to N.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from posterity.adaptation.groups import is_label
from posterity.adaptation.penalties.kprior import outputs_of
from posterity.batches import Batch, batches
from posterity.errors import expected, require
from posterity.inputs import take, tensors
from posterity.likelihoods import Likelihood
from posterity.memory import dual
from posterity.noise import seeded
from posterity.posterior import Memory, Posterior

RULES = ("random", "curvature", "leverage", "k-centre")


def select(
    model: nn.Module,
    posterior: Posterior,
    data: Any,
    size: int,
    *,
    by: str = "random",
    weighted: bool = True,
    seed: int = 0,
) -> Memory:
    """Choose examples to remember.

    Args:
        model: The model at the posterior mean.
        posterior: Its posterior; "leverage" needs its covariance, all rules its likelihood.
        data: The data to choose from.
        size: How many examples; classes share them evenly, where there is one for each.
        by: "random"; "curvature" takes the largest Σ_c p_c(1 − p_c), the trace of Λ; "leverage" the largest V Λ, with
            V the variance of the prediction; "k-centre" each time the example that is farthest from those chosen.
        weighted: Whether the chosen examples represent all of `data`; otherwise each for itself.
        seed: Of the random rule.

    Returns:
        A memory with the model's predictions.

    References:
        Pan et al., "Continual deep learning by functional regularisation of memorable past", 2020 (curvature).
        Nickl et al., "The memory-perturbation equation", 2023 (leverage).
        Nguyen, Li, Bui and Turner, "Variational continual learning", 2018 (k-centre).
    """
    everything = Batch.concatenate(list(batches(data, batch_size=1024)))
    fits = isinstance(size, Integral) and 1 <= size <= len(everything)
    require(fits, "size", f"a number of examples in 1..{len(everything)}", size)
    if by not in RULES:
        raise expected("by", f"one of {list(RULES)}", by)
    f = outputs_of(model, everything)
    scores = _scores(by, model, posterior, everything, f, seed)
    groups = _groups(posterior.likelihood, everything.targets, size)
    rows, weights = [], []
    for group, share in zip(groups, _shares([len(g) for g in groups], size)):
        chosen = (
            _centres(everything, group, share) if scores is None else group[scores.cpu()[group].topk(share).indices]
        )
        rows.append(chosen)
        weights.append(torch.full((share,), len(group) / share if weighted else 1.0))
    index = torch.cat(rows)
    return Memory.of(everything.take(index), torch.cat(weights), take(f, index))


def _scores(by: str, model: nn.Module, posterior: Posterior, data: Batch, f: Tensor, seed: int) -> Tensor | None:
    if by == "random":
        return torch.rand(len(data), generator=seeded(seed), dtype=torch.float32)
    if by == "curvature":
        return posterior.likelihood.curvature(f).diagonal(dim1=-2, dim2=-1).sum(-1)
    if by == "leverage":
        return dual(model, posterior, (data.inputs, data.targets, data.ids)).leverage.to(f)
    return None


def _groups(likelihood: Likelihood, targets: Tensor, size: int) -> list[Tensor]:
    """Positions of each class; all together where targets are not classes, or more classes than can be remembered."""
    if likelihood.has_class_axis and is_label(targets):
        labels = targets.unique()
        if len(labels) <= size:
            return [(targets == label).nonzero()[:, 0].cpu() for label in labels]
    return [torch.arange(len(targets))]


def _shares(counts: list[int], size: int) -> list[int]:
    """How many of each class: as evenly as the classes have examples."""
    shares = [0] * len(counts)
    while sum(shares) < size:
        open_groups = [i for i, count in enumerate(counts) if shares[i] < count]
        each = max((size - sum(shares)) // len(open_groups), 1)
        for i in open_groups[: size - sum(shares)]:
            shares[i] += min(each, counts[i] - shares[i])
    return shares


def _centres(data: Batch, group: Tensor, count: int) -> Tensor:
    """Greedy k-centre from the first example on, with distances over all that is not whole numbers."""
    parts = [t[group].reshape(len(group), -1).double() for t in tensors(data.inputs) if t.is_floating_point()]
    require(bool(parts), "inputs", "real numbers, for distances between examples", type(data.inputs).__name__)
    x = torch.cat(parts, 1)
    nearest = torch.full((len(x),), torch.inf, dtype=x.dtype, device=x.device)
    return group[farthest_first(x, count, nearest)[0]]


def farthest_first(x: Tensor, count: int, nearest: Tensor) -> tuple[Tensor, Tensor]:
    """Each time the row that is farthest from all before: rows, and how far each was when it was taken.

    Args:
        x: Features (N, D).
        count: How many rows to take.
        nearest: Squared distance of each row from what is taken already; infinity where nothing is.
    """
    rows: list[int] = []
    distances: list[float] = []
    while len(rows) < count:
        rows.append(int(nearest.argmax()))
        distances.append(nearest[rows[-1]].sqrt().item())
        nearest = torch.minimum(nearest, (x - x[rows[-1]]).square().sum(1))
        nearest[rows[-1]] = -torch.inf  # taken, however many copies of it there are
    return torch.tensor(rows, dtype=torch.int64), torch.tensor(distances, dtype=torch.float64)
