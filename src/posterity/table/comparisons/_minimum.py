"""The minimum of a smooth function as scipy finds it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor


def minimum(energy: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """BFGS, then a root of the gradient to the last digits."""
    from scipy import optimize

    def both(flat: np.ndarray) -> tuple[float, np.ndarray]:
        slope, value = torch.func.grad_and_value(energy)(torch.as_tensor(flat))
        return float(value), slope.numpy()

    def slope(flat: np.ndarray) -> np.ndarray:
        return both(flat)[1]

    rough = optimize.minimize(both, start.numpy(), jac=True, method="BFGS", options={"gtol": 1e-9})
    return torch.as_tensor(optimize.root(slope, rough.x, tol=1e-14).x)
