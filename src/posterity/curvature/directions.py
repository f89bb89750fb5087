"""Directions in the space of the weights: forward to outputs as tangents, and back from outputs as gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from posterity.curvature._fallback import tangent, transformable
from posterity.curvature._tape import Tape, differentiable
from posterity.errors import expected
from posterity.inputs import Inputs, call
from posterity.trees import Tree, check_same_shapes


def pushforward(model: nn.Module, inputs: Inputs, direction: Tree) -> Tensor:
    """J_n Δ for each example: how outputs change when the weights move by Δ, to first order, in one tangent pass.

    Args:
        model: Network with outputs (B, ..., K).
        inputs: A batch of inputs.
        direction: Δ, for some or all trainable parameters.

    Returns:
        The change of the outputs, shaped as they are.

    Examples:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> pushforward(model, torch.tensor([[1.0, 2.0]]), {"weight": torch.tensor([[0.5, 0.25]])})
        tensor([[1.]])
    """
    with Tape(model, list(direction)) as tape, torch.enable_grad(), transformable():
        check_same_shapes(direction, tape.parameters, "direction")
        parameters = tape.parameters
        outputs = call(model, differentiable(inputs))
        return tangent(outputs, list(parameters.values()), [direction[name] for name in parameters])


def pullback(model: nn.Module, inputs: Inputs, v: Tensor, names: Sequence[str] | None = None) -> Tree:
    """Σ_n J_nᵀ v_n, the transpose of `pushforward`, in one backward pass.

    Args:
        model: Network with outputs (B, ..., K).
        inputs: A batch of inputs.
        v: Vectors shaped as the outputs, such as the residuals of a group of examples.
        names: Parameters to cover; all trainable ones by default.

    Returns:
        A direction in the space of the weights.

    Examples:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> pullback(model, torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0], [-1.0]]))
        {'weight': tensor([[-2., -2.]])}
    """
    with Tape(model, names) as tape, torch.enable_grad(), transformable():
        outputs = call(model, differentiable(inputs))
        if outputs.shape != v.shape:
            raise expected("v", f"shape {tuple(outputs.shape)} like the outputs", tuple(v.shape))
        found = torch.autograd.grad(outputs, list(tape.parameters.values()), v.to(outputs), materialize_grads=True)
    return {name: g.to_dense() for name, g in zip(tape.names, found)}  # an embedding's may be sparse
