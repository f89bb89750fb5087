"""Examples that a posterior remembers, with their weights and with what the model said about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posterity.batches import Batch, Inputs
from posterity.errors import expected, require


@dataclass(frozen=True, eq=False)
class Memory:
    """Weighted examples.

    Args:
        inputs: A tensor, or a mapping of tensors, with one row for each example.
        targets: One target for each example.
        ids: Stable integer ids of the examples in the data they came from.
        weights: How many examples each one stands for; 1 each unless given.
        predictions: The model's outputs f (logits) at the posterior mean, one row for each example.
    """

    inputs: Inputs
    targets: Tensor
    ids: Tensor
    weights: Tensor | None = None
    predictions: Tensor | None = None

    def __post_init__(self) -> None:
        if self.weights is None:
            object.__setattr__(self, "weights", torch.ones(len(self.ids)))
        columns = {"targets": self.targets, "weights": self.weights, "predictions": self.predictions}
        inputs = self.inputs if isinstance(self.inputs, dict) else {"inputs": self.inputs}
        for name, column in (columns | inputs).items():
            if column is None:
                continue
            if not isinstance(column, Tensor):
                raise expected(f"memory {name}", "a tensor", type(column).__name__)
            require(
                len(column) == len(self.ids), f"memory {name}", f"{len(self.ids)} rows, one for each id", len(column)
            )

    def __len__(self) -> int:
        return len(self.ids)

    def batch(self) -> Batch:
        """The examples as one batch."""
        return Batch(self.inputs, self.targets, self.ids)

    def tensors(self) -> dict[str, Tensor]:
        """Everything, under flat names."""
        inputs = (
            {f"inputs/{k}": v for k, v in self.inputs.items()}
            if isinstance(self.inputs, dict)
            else {"inputs": self.inputs}
        )
        rest = {"targets": self.targets, "ids": self.ids, "weights": self.weights, "predictions": self.predictions}
        return inputs | {name: t for name, t in rest.items() if t is not None}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> Memory:
        """The memory that `tensors` describes."""
        named: Any = {k.removeprefix("inputs/"): v for k, v in tensors.items() if k.startswith("inputs/")}
        inputs = tensors.get("inputs", named)
        return cls(inputs, tensors["targets"], tensors["ids"], tensors["weights"], tensors.get("predictions"))
