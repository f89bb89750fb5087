"""Small networks that many tests share."""

from __future__ import annotations

from itertools import pairwise

from torch import nn


def perceptron(*widths: int, hidden: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    """Linear layers between these widths, with an activation after each but the last: perceptron(4, 5, 3)."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [hidden(), nn.Linear(inputs, outputs)] if layers else [nn.Linear(inputs, outputs)]
    return nn.Sequential(*layers)
