"""A group of which only a memory is left: each remembered example stands for others, whose labels nobody knows.

Σ_{i∈group} ∇ℓ_i  ≈  Σ_{i∈M∩group} ∇ℓ_i  +  Σ_{i∈M} (w_i − 1) J_iᵀ cov_y[ 1(x_i, y in the group), ∂ℓ/∂f(f_i, y) ]

The labels of the others are drawn from the old model, y ~ p(y | x_i, θ*), and the function that names the group is
asked about them. Their residuals have no mean, so that only a group that has to do with labels pulls: a class does.
The labels of the remembered examples in place of these draws would scatter √w times as much as those of all the data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from posterity.adaptation.replay import predictions_of
from posterity.batches import Batch
from posterity.errors import require
from posterity.likelihoods import Likelihood
from posterity.posterior import Memory

DRAWS = 100  # of the labels of each example

Picks = Callable[[Batch], Any]


def picked(picks: Picks, batch: Batch) -> Tensor:
    """What a function picks, one truth value for each example, where ids are."""
    mask, n = torch.as_tensor(picks(batch)).cpu(), len(batch)
    fine = mask.dtype == torch.bool and mask.numel() == n
    require(fine, "remove", f"a function that returns {n} truth values", f"{mask.dtype} {tuple(mask.shape)}")
    return mask.reshape(n)


def residuals_of_others(picks: Picks, memory: Memory, likelihood: Likelihood) -> Tensor:
    """(w − 1) cov_y[1, ∂ℓ/∂f] of each example, shaped as the predictions, in float64."""
    f = predictions_of(memory).double().cpu()
    generator = torch.Generator().manual_seed(0)
    inside, pull, both = f.new_zeros(len(f)), torch.zeros_like(f), torch.zeros_like(f)
    for _ in range(DRAWS):
        y = likelihood.sample(f, generator).to(memory.targets)
        if y.shape != memory.targets.shape:  # class probabilities: no label that could be drawn
            return torch.zeros_like(f)
        mask = picked(picks, Batch(memory.inputs, y, memory.ids)).double()
        e = likelihood.residual(f, y.cpu())
        inside += mask / DRAWS
        pull += e / DRAWS
        both += mask.unsqueeze(1) * e / DRAWS
    return (memory.weights.double().cpu() - 1).clamp_min(0).unsqueeze(1) * (both - inside.unsqueeze(1) * pull)
