"""The curvature of what adapters change: of the weight W + (α/r) B A itself, in which adapters of all tasks agree."""

from __future__ import annotations

from typing import Any

from torch import nn

from posterity.adapters.layers import adapted_modules
from posterity.batches import batches
from posterity.checkpoints import PEFT_PREFIX
from posterity.curvature import diagonal_fisher
from posterity.errors import expected
from posterity.likelihoods import Likelihood
from posterity.trees import Tree, evaluating, only_trainable


def adapter_curvature(
    model: nn.Module, data: Any, likelihood: str | Likelihood, *, batch_size: int = 64, memory: int | None = None
) -> Tree:
    """The diagonal Fisher information Σ_n E[g_n²] of every adapted weight, for `merge_adapters`.

    The change that an adapter makes to the weights is B A; its factors are not unique, so factors of two tasks cannot
    be compared, while their changes can.

    Args:
        model: A model with adapters of `insert_lora`, trained on the data.
        data: The data of its task.
        likelihood: What its outputs mean.
        batch_size: Examples at a time.
        memory: Bytes that may be held at a time, see `posterity.curvature.diagonal_fisher`.

    Returns:
        A tensor of shape (out, in) for each adapted module, under its name in the adapter's file.
    """
    found = adapted_modules(model)
    if not found:
        raise expected("model", "one with adapters (insert_lora)", "one without")
    weights = {f"{name}.base_layer.weight": name for name in found}
    with evaluating(model), only_trainable(model, weights):
        fisher = diagonal_fisher(model, batches(data, batch_size=batch_size), likelihood, memory=memory)
    return {PEFT_PREFIX + weights[name]: value for name, value in fisher.items() if name in weights}
