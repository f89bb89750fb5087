"""Small problems that the tests of learners share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from small_data import handwritten_digits

Data = tuple[Tensor, Tensor]
BINARY = ("bayesbinn", "ste")  # methods for networks without biases


def digits() -> tuple[Data, Data]:
    """Handwritten digits of 8 x 8 pixels: three quarters to train on, one to test."""
    x, y = handwritten_digits()
    cut = 3 * len(y) // 4
    return (x[:cut], y[:cut]), (x[cut:], y[cut:])


def blobs(n: int = 100, classes: int = 3, seed: int = 0) -> Data:
    """Points around the corners of a triangle."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=generator)
    return torch.randn(n, 2, generator=generator) + 2 * torch.eye(classes)[y][:, :2], y


def line(n: int = 400, noise: float = 0.5, seed: int = 0) -> Data:
    """A noisy linear function of three inputs, with targets (n, 1)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=generator)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]]) + 0.3
    return x, y + noise * torch.randn(n, 1, generator=generator)


def mlp(inputs: int = 2, hidden: int = 8, outputs: int = 3, seed: int = 0, bias: bool = True) -> nn.Sequential:
    """A network with one hidden layer, the same for the same seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(inputs, hidden, bias), nn.ReLU(), nn.Linear(hidden, outputs, bias))
