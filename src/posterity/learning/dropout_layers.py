"""Dropout modules of a network: which it has, and how it gets some."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from posterity.errors import expected, require
from posterity.posterior.dropout import require_mask

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def insert_dropout(model: nn.Module, p: float = 0.1, after: Sequence[str] | None = None) -> None:
    """Put dropout behind layers of a model, in place; the names of its parameters are not changed.

    Args:
        model: The model.
        p: Probability that a unit is dropped.
        after: Names of the modules; by default every linear and convolutional layer but the last one,
            whose outputs are the logits.

    Examples:
        >>> net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
        >>> insert_dropout(net, p=0.2)
        >>> dropout_rates(net)
        {'0.dropout': 0.2}
    """
    require(0 < p < 1, "p", "a probability in (0, 1)", p)
    modules = dict(model.named_modules())
    if after is None:
        after = [name for name, module in modules.items() if isinstance(module, LAYERS)][:-1]
        require(len(after) > 0, "model", "at least two linear or convolutional layers", type(model).__name__)
    for name in after:
        if name not in modules:
            raise expected("after", f"modules among {sorted(modules)}", name)
        layer = modules[name]
        if isinstance(getattr(layer, "dropout", None), _DropoutNd):
            layer.dropout.p = p
        else:
            layer.add_module("dropout", nn.Dropout(p))
            layer.register_forward_hook(_drop)


def dropout_rates(model: nn.Module) -> dict[str, float]:
    """The rate of every dropout module, by name; an error where there is none, or one that cannot be kept random."""
    found = {name: module for name, module in model.named_modules() if isinstance(module, _DropoutNd)}
    for name, module in found.items():
        require_mask(name, module)
    rates = {name: module.p for name, module in found.items()}
    require(len(rates) > 0, "model", "dropout modules (or p=..., to insert some)", type(model).__name__)
    return rates


def _drop(layer: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return layer.dropout(output)  # type: ignore[operator]
