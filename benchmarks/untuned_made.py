"""Made data for the choice of budgets: noisy labels of smooth teachers, and functions too rough to learn quickly."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

Rows = tuple[Tensor, Tensor]
Maker = Callable[[Path], Rows]
TEST = 8000


def teacher(n: int, inputs: int, width: int, sharpness: float, classes: int, seed: int) -> Maker:
    """Labels drawn from the probabilities of a network with two hidden layers."""

    def make(_: Path) -> Rows:
        torch.manual_seed(seed)
        x = torch.randn(n + TEST, inputs)
        first, bias = torch.randn(inputs, width) * 1.5 / inputs**0.5, 0.5 * torch.randn(width)
        second, last = torch.randn(width, width) * 1.5 / width**0.5, torch.randn(width, classes) * 4 / width**0.5
        f = torch.tanh(torch.tanh(x @ first + bias) @ second) @ last
        return x, torch.multinomial(torch.softmax(sharpness * f, -1), 1).squeeze(1)

    return make


def rough(n: int, inputs: int, frequency: float, noise: float, seed: int, amounts: bool) -> Maker:
    """The sum of six waves in random directions and a line: its sign with flipped labels, or its value with noise."""

    def make(_: Path) -> Rows:
        torch.manual_seed(seed)
        x, waves = torch.randn(n + TEST, inputs), frequency * torch.randn(inputs, 6)
        f = (torch.sin(x @ waves + 2 * math.pi * torch.rand(6)) * torch.randn(6)).sum(1) + 0.5 * x @ torch.randn(inputs)
        if amounts:
            return x, f + noise * f.std() * torch.exp(0.5 * x[:, 0]) * torch.randn(len(f))
        labels = (f > f.median()).long()
        return x, torch.where(torch.rand(len(f)) < noise, 1 - labels, labels)

    return make


def friedman(n: int, noise: float, seed: int) -> Maker:
    """Friedman's first function, with noise that grows along a column."""

    def make(_: Path) -> Rows:
        generator = np.random.default_rng(seed)
        x = generator.uniform(size=(n + TEST, 8))
        smooth = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
        y = smooth + noise * (1 + x[:, 5]) * generator.standard_normal(len(x))
        return torch.from_numpy(x).float(), torch.from_numpy(y).float()

    return make


MADE = {  # rows to train on, and what makes all
    "teacher_1": (8000, teacher(8000, 8, 16, 0.5, 2, 1)),
    "teacher_2": (8000, teacher(8000, 12, 12, 1.5, 2, 2)),
    "teacher_3": (6000, teacher(6000, 16, 24, 1.0, 5, 3)),
    "rough_1": (8000, rough(8000, 6, 0.6, 0.1, 1, False)),
    "rough_2": (8000, rough(8000, 6, 1.0, 0.05, 2, False)),
    "rough_3": (8000, rough(8000, 4, 1.2, 0.15, 3, False)),
    "rough_4": (20_000, rough(20_000, 6, 0.8, 0.1, 4, False)),
    "rough_5": (10_000, rough(10_000, 6, 0.6, 0.4, 5, True)),
    "rough_6": (10_000, rough(10_000, 5, 0.8, 0.6, 6, True)),
    "friedman_1": (8000, friedman(8000, 3.0, 1)),
    "friedman_2": (1400, friedman(1400, 2.0, 2)),
}
