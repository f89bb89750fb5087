"""Weights, functions and labels together: EWC for what is forgotten, soft labels and true labels for what is kept.

∇ of the past  ≈  (R + P₀)(θ − θ*)  +  Σ_M w_i J_iᵀ(h(f_i) − h(f*_i))  +  Σ_M (J_i − J*_i)ᵀ(h(f*_i) − y_i)
                  weights              functions                           labels

Each term takes away a part of the error of the one before. With every example in M, and the old model at an optimum,
nothing is left: the gradient is that of the past, for any network.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from posterity.adaptation.penalties.kprior import k_prior
from posterity.adaptation.penalties.penalty import Penalty, Sum, gradient
from posterity.adaptation.penalties.quadratic import Quadratic
from posterity.adaptation.penalties.replay import Replay, ResidualReplay
from posterity.posterior import Memory, Posterior
from posterity.trees import Tree


def weights_functions_labels(
    model: nn.Module, posterior: Posterior, memory: Memory, *, batch_size: int | None = None
) -> Sum:
    """EWC on the remainder, functional regularisation on the memory, and the memory's true labels.

    Labels count once each, regardless of the weights: the error of an example is not informative about others.

    Args:
        model: The model that the posterior belongs to, at the posterior mean.
        posterior: A Gaussian posterior.
        memory: Weighted examples with the model's predictions.
        batch_size: Memory examples for each call; all of them unless given.

    Returns:
        A penalty.

    References:
        Daxberger et al., "Improving continual learning by accurate gradient reconstructions of the past", 2023.
    """
    labels = labels_of(model, memory, posterior, batch_size)
    return k_prior(model, posterior, memory, batch_size=batch_size) + labels


def labels_of(model: nn.Module, memory: Memory, posterior: Posterior, batch_size: int | None = None) -> ResidualReplay:
    """The true labels of a memory, each counted once."""
    once = replace(memory, weights=torch.ones_like(memory.weights))
    return ResidualReplay.at(model, once, posterior.likelihood, batch_size)


def reconstruction_error(penalty: Penalty, model: nn.Module, posterior: Posterior, data: Memory) -> float:
    """‖∇penalty − ∇past‖ / ‖∇past‖ at the model's weights, the past being all its data and its prior.

    Args:
        penalty: The representation of the past.
        model: The model, at weights away from the old ones.
        posterior: The posterior that the past had led to.
        data: All of the past's examples.
    """
    scale = posterior.temperature
    past = Replay(data, posterior.likelihood) + scale * Quadratic(posterior.prior)
    wanted, found = gradient(past, model), gradient(penalty, model)
    return (_norm({name: found[name] - g for name, g in wanted.items()}) / _norm(wanted)).item()


def _norm(tree: Tree) -> Tensor:
    return sum((t.double().square().sum() for t in tree.values()), start=next(iter(tree.values())).new_zeros(())).sqrt()
