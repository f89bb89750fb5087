"""Small data that many tests share."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor


def handwritten_digits(*, shuffled: bool = True) -> tuple[Tensor, Tensor]:
    """The 1797 digits of 8 x 8 pixels: inputs (N, 64) in [0, 1] and labels; always in the same order."""
    x, y = load_digits(return_X_y=True)
    inputs, labels = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
    if not shuffled:
        return inputs, labels
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return inputs[order], labels[order]
