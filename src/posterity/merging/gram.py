"""Gram matrices of the inputs of linear layers, which RegMean weights models by."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from posterity.curvature.ggn import Data, own_part
from posterity.distributed import totals
from posterity.errors import require
from posterity.inputs import call
from posterity.progress import track
from posterity.trees import Tree, evaluating, state_dtype


@torch.no_grad()
def gram_matrices(model: nn.Module, batches: Data) -> Tree:
    """Σ XᵀX over all inputs X of each linear layer, by one forward pass over the data.

    Positions (tokens, pixels) count as inputs of their own. Padding does too: leave it out by batches of texts that
    are equally long.

    Args:
        model: The model, evaluated in evaluation mode.
        batches: Batches of data, or what they can be made of.

    Returns:
        A matrix (in, in) for the weight of each `nn.Linear`, under its name.

    Examples:
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 2.0]])
        >>> gram_matrices(nn.Sequential(nn.Linear(2, 3)), (x, torch.zeros(2)))
        {'0.weight': tensor([[2., 2.],
                [2., 4.]])}
    """
    layers = {
        f"{name}.weight".removeprefix("."): module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    }
    require(bool(layers), "model", "at least one nn.Linear", "none")
    grams: Tree = {}

    def counter(name: str) -> Any:
        def count(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            X = inputs[0].flatten(0, -2).to(state_dtype(inputs[0].dtype))
            grams[name] = grams.get(name, 0.0) + X.mT @ X

        return count

    handles = [module.register_forward_pre_hook(counter(name)) for name, module in layers.items()]
    device = next(model.parameters()).device
    try:
        with evaluating(model):
            for batch in track(own_part(batches), "Gram matrices"):
                call(model, batch.to(device).inputs)
    finally:
        for handle in handles:
            handle.remove()
    return totals(grams)
