"""A group that only a memory contains: each remembered example represents others, whose labels are unknown.

Σ_{i∈group} ∇ℓ_i  ≈  Σ_{i∈M∩group} ∇ℓ_i  +  Σ_{i∈M} (w_i − 1) J_iᵀ cov_y[ 1(x_i, y in the group), ∂ℓ/∂f(f_i, y) ]

The labels of the others are drawn from the old model, y ~ p(y | x_i, θ*), and the function that names the group is
asked about them. Their residuals have no mean, so that only a group that has to do with labels pulls: a class does.
The labels of the remembered examples in place of these draws would scatter √w times as much as those of all the data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posterity.adaptation.penalties.replay import predictions_of
from posterity.batches import Batch
from posterity.errors import require
from posterity.inputs import Inputs
from posterity.likelihoods import Likelihood
from posterity.posterior import Memory

DRAWS = 100  # of the labels of each example

Picks = Callable[[Batch], Any]


def picked(picks: Picks, batch: Batch) -> Tensor:
    """What a function picks, one truth value for each example, where ids are."""
    found, n = picks(batch), len(batch)
    require(found is not None, "remove", f"a function that returns {n} truth values", None)
    mask = torch.as_tensor(found).cpu()
    fine = mask.dtype == torch.bool and mask.numel() == n
    require(fine, "remove", f"a function that returns {n} truth values", f"{mask.dtype} {tuple(mask.shape)}")
    return mask.reshape(n)


@dataclass(frozen=True, eq=False)
class Others:
    """What goes with the remembered examples of a group.

    Args:
        inputs: Those of the memory.
        residuals: (w − 1) cov_y[1, ∂ℓ/∂f] of each, shaped as the predictions, in float64.
        labels: Classes that go whole: any remembered input would be in the group if it had such a label.
    """

    inputs: Inputs
    residuals: Tensor
    labels: Tensor

    @classmethod
    def of(cls, picks: Picks, memory: Memory, likelihood: Likelihood) -> Others:
        """The function that names the group is asked about other labels of what is remembered."""
        labels = memory.targets.unique() if is_label(memory.targets) else memory.ids[:0]
        whole = [bool(picked(picks, _labelled(memory, label.expand(len(memory)))).all()) for label in labels]
        return cls(
            memory.inputs, _residuals(picks, memory, likelihood), labels.cpu()[torch.tensor(whole, dtype=torch.bool)]
        )


def is_label(targets: Tensor) -> bool:
    """Whether targets are one whole number for each example."""
    return targets.ndim == 1 and not targets.is_floating_point()


def _residuals(picks: Picks, memory: Memory, likelihood: Likelihood) -> Tensor:
    f = predictions_of(memory).double().cpu()
    generator = torch.Generator().manual_seed(0)
    inside, pull, both = f.new_zeros(len(f)), torch.zeros_like(f), torch.zeros_like(f)
    for _ in range(DRAWS):
        y = likelihood.sample(f, generator).to(memory.targets)
        if y.shape != memory.targets.shape:  # class probabilities: no label that could be drawn
            return torch.zeros_like(f)
        mask = picked(picks, _labelled(memory, y)).double()
        e = likelihood.residual(f, y.cpu())
        inside += mask / DRAWS
        pull += e / DRAWS
        both += mask.unsqueeze(1) * e / DRAWS
    return (memory.weights.double().cpu() - 1).clamp_min(0).unsqueeze(1) * (both - inside.unsqueeze(1) * pull)


def _labelled(memory: Memory, targets: Tensor) -> Batch:
    return Batch(memory.inputs, targets, memory.ids)
