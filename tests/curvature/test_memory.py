"""No tensor grows to examples × outputs × parameters, and a budget of memory is kept."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from curvature.cases import covariance
from networks import perceptron
from posterity.batches import batches
from posterity.curvature import (
    diagonal_ggn,
    full_ggn,
    kernel,
    kronecker_ggn,
    per_example_gradient_norms,
    per_example_squared_gradients,
    prediction_covariance,
    prediction_covariance_product,
)

B, K = 32, 10
MLP = perceptron(40, 60, 50, K, hidden=nn.ReLU).double()
CNN = nn.Sequential(nn.Conv2d(2, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.Flatten(), nn.Linear(16 * 16, K)).double()


class Largest(TorchDispatchMode):
    """Remembers the largest tensor that any operation made, in numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        held = [t.untyped_storage().nbytes() // t.element_size() for t in tree_leaves(out) if isinstance(t, Tensor)]
        self.numbers = max(self.numbers, *held, 0)
        return out


def largest(question: Callable[[], object]) -> int:
    with Largest() as seen:
        question()
    return seen.numbers


def questions(model: nn.Module, x: Tensor, shape: str, memory: int | None) -> dict[str, Callable[[], object]]:
    data = batches((x, torch.zeros(len(x), dtype=torch.int64)))
    batch = data.take(torch.arange(len(x)))
    sigma = covariance(model, shape)
    e = torch.randn(len(x), K, dtype=torch.float64)
    return {
        "diagonal": lambda: diagonal_ggn(model, data, "categorical", memory=memory),
        "kronecker": lambda: kronecker_ggn(model, data, "categorical", memory=memory),
        "squares": lambda: per_example_squared_gradients(model, data, "categorical", memory=memory),
        "norms": lambda: per_example_gradient_norms(model, batch, "categorical", memory=memory),
        "covariance": lambda: prediction_covariance(model, x, sigma, memory=memory),
        "product": lambda: prediction_covariance_product(model, x, sigma, e, memory=memory),
    }


@pytest.mark.parametrize("shape", ["diagonal", "kronecker"])
def test_a_perceptron_needs_signals_and_no_gradients(shape: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(B, 40, dtype=torch.float64)
    signals = K * B * 60  # the widest layer
    for name, question in questions(MLP, x, shape, None).items():
        assert B * 60 <= largest(question) <= signals, name


@pytest.mark.parametrize("shape", ["diagonal", "kronecker"])
def test_a_budget_bounds_what_convolutions_write_out(shape: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(B, 2, 8, 8, dtype=torch.float64)
    budget = 200_000  # numbers; the gradients of all roots and examples would be K · B · 16 · 72
    assert budget < K * B * 16 * 72 / 1.5
    for name, question in questions(CNN, x, shape, 8 * budget).items():
        assert largest(question) <= budget, name


def test_the_last_layer_and_kernels_keep_the_budget_too() -> None:
    torch.manual_seed(0)
    x = torch.randn(B, 40, dtype=torch.float64)
    data = batches((x, torch.zeros(B, dtype=torch.int64)))
    names = ["4.weight", "4.bias"]
    result = (51 * K) ** 2
    assert largest(lambda: full_ggn(MLP, data, "categorical", names, memory=8 * 60_000)) <= result
    sigma = covariance(MLP, "diagonal")
    result = B * B * K * K
    assert largest(lambda: kernel(MLP, x, x, sigma, memory=8 * 60_000)) <= result
