"""K-priors: the past as a divergence between functions on a memory and a divergence between weights.

K(θ) = Σ_{i∈M} w_i D(h(f*_i) ‖ h(f_i)) + ½ (θ − θ*)ᵀ (R + P₀) (θ − θ*)

D is the loss against the old model's own predictions h(f*), R the remainder that the memory does not represent and P₀
the precision of the prior. For generalised linear models with all past inputs in M this has the gradient of the past
objective, everywhere: what is trained with it is what retraining would give.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posterity.adaptation.penalties.penalty import Penalty, Sum
from posterity.adaptation.penalties.quadratic import Quadratic, gaussian_of
from posterity.adaptation.penalties.replay import OverMemory, predictions_of
from posterity.adaptation.penalties.residual_curvature import split
from posterity.batches import Batch, batches
from posterity.errors import require
from posterity.inputs import call, move, take
from posterity.posterior import Diagonal, Memory, Posterior
from posterity.trees import evaluating


@dataclass(frozen=True, eq=False)
class FunctionDivergence(OverMemory):
    """Σ_i w_i [ ℓ(f_i, h(f*_i)) − ℓ(f*_i, h(f*_i)) ]: zero at the old model, a Bregman divergence from it.

    Classes that the old model lacks count as probability zero.
    """

    def each(self, f: Tensor, rows: Tensor | None) -> Tensor:
        old = take(predictions_of(self.memory), rows).to(f)
        y = self.likelihood.mean(old)
        missing = f.shape[-1] - y.shape[-1]
        return self.likelihood.loss(f, nn.functional.pad(y, (0, missing))) - self.likelihood.loss(old, y)


def k_prior(
    model: nn.Module, posterior: Posterior, memory: Memory | None = None, *, batch_size: int | None = None
) -> Sum:
    """The K-prior of a posterior and a memory.

    Without a memory it is the weight prior that EWC uses; with everything in the memory it is exact for generalised
    linear models.

    Args:
        model: The model that the posterior belongs to, at the posterior mean.
        posterior: A Gaussian posterior.
        memory: Weighted examples with the model's predictions (see `remember`, `select`).
        batch_size: Memory examples for each call; all of them unless given.

    Returns:
        A penalty.

    References:
        Khan and Swaroop, "Knowledge-adaptation priors", 2021.
    """
    given = memory is None or isinstance(memory, Memory)
    require(given, "memory", "a Memory (`remember` makes one)", type(memory).__name__)
    memory, rest = split(model, posterior, memory)
    terms: list[tuple[float, Penalty]] = [(1.0, Quadratic(rest))]
    if memory is not None:
        terms.append((1.0, FunctionDivergence(memory, posterior.likelihood, batch_size=batch_size)))
    terms.append((posterior.temperature, Quadratic(prior_at_mean(posterior))))
    return Sum(tuple(terms))


def prior_at_mean(posterior: Posterior) -> Diagonal:
    """The prior's precision around the posterior mean, over what is uncertain."""
    mean = gaussian_of(posterior.structure).mean
    return Diagonal(mean, {name: posterior.prior.precision[name] for name in mean})


def remember(model: nn.Module, data: Any, weights: Tensor | None = None) -> Memory:
    """All of some data as a memory, with the model's output for each example.

    Args:
        model: The model, at the weights that are to be remembered.
        data: (inputs, targets[, ids]), a Dataset or a DataLoader.
        weights: How many examples each one represents; 1 each unless given.
    """
    joined = Batch.concatenate(list(batches(data, batch_size=1024)))
    weights = torch.ones(len(joined)) if weights is None else torch.as_tensor(weights)
    return Memory.of(joined, weights.to(joined.targets.device), outputs_of(model, joined))


def outputs_of(model: nn.Module, batch: Batch, chunk: int = 1024) -> Tensor:
    """The model's outputs in evaluation mode, without a graph, on the device of the targets."""
    device = next(model.parameters()).device
    with evaluating(model), torch.no_grad():
        parts = [call(model, move(take(batch.inputs, r), device)) for r in torch.arange(len(batch)).split(chunk)]
    return torch.cat(parts).to(batch.targets.device)
