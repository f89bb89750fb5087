"""Examples that a posterior remembers, with their weights and the model's outputs for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from posterity.batches import Batch
from posterity.errors import expected, require
from posterity.inputs import Inputs, take
from posterity.trees import Tree


@dataclass(frozen=True, eq=False, repr=False)
class Memory:
    """Weighted examples.

    Args:
        inputs: A tensor, or a mapping of tensors, with one row for each example.
        targets: One target for each example.
        ids: Stable integer ids of the examples in the data they came from.
        weights: How many examples each one represents; 1 each unless given.
        predictions: The model's outputs f (logits) at the posterior mean, one row for each example.
    """

    inputs: Inputs
    targets: Tensor
    ids: Tensor
    weights: Tensor = None  # type: ignore[assignment]  # always a tensor once built
    predictions: Tensor | None = None

    def __post_init__(self) -> None:
        integers = self.ids.ndim == 1 and not self.ids.is_floating_point()
        require(integers and len(self.ids) > 0, "memory ids", "a vector of integers, not empty", self.ids)
        object.__setattr__(self, "ids", self.ids.cpu())  # where the ids of data are, wherever the examples are
        if self.weights is None:
            object.__setattr__(self, "weights", torch.ones(len(self.ids), device=self.targets.device))
        for name, column in self.tensors().items():
            if not isinstance(column, Tensor):
                raise expected(f"memory {name}", "a tensor", type(column).__name__)
            require(len(column) == len(self), f"memory {name}", f"{len(self)} rows, one for each id", len(column))
        fine = bool((torch.isfinite(self.weights) & (self.weights >= 0)).all())
        require(fine, "memory weights", "finite numbers >= 0", self.weights)

    def __repr__(self) -> str:
        return f"Memory({len(self)} examples)"

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def of(cls, batch: Batch, weights: Tensor | None = None, predictions: Tensor | None = None) -> Memory:
        """The examples of a batch; 1 each unless weights are given."""
        return cls(batch.inputs, batch.targets, batch.ids, weights, predictions)  # type: ignore[arg-type]

    def take(self, rows: Tensor) -> Memory:
        """The examples in some rows."""
        return Memory.of(self.batch().take(rows), take(self.weights, rows), take(self.predictions, rows))

    @staticmethod
    def concatenate(parts: Sequence[Memory]) -> Memory:
        """Memories one after the other, as one; their predictions are kept where all of them have some."""
        found = [part.predictions for part in parts]
        return Memory.of(
            Batch.concatenate([part.batch() for part in parts]),
            torch.cat([part.weights.to(parts[0].weights) for part in parts]),
            None if any(f is None for f in found) else torch.cat([f.to(found[0]) for f in found]),  # type: ignore
        )

    def batch(self) -> Batch:
        """The examples as one batch."""
        return Batch(self.inputs, self.targets, self.ids)

    def tensors(self) -> Tree:
        """Everything, under flat names."""
        if isinstance(self.inputs, Mapping):
            columns = {f"inputs/{name}": t for name, t in self.inputs.items()}
        else:
            columns = {"inputs": self.inputs}
        columns |= {"targets": self.targets, "ids": self.ids, "weights": self.weights}
        return columns if self.predictions is None else columns | {"predictions": self.predictions}

    @classmethod
    def from_tensors(cls, tensors: Tree) -> Memory:
        """The memory that `tensors` describes."""
        columns = {name.removeprefix("inputs/"): t for name, t in tensors.items() if name.startswith("inputs/")}
        inputs: Inputs = tensors.get("inputs", columns)
        return cls(inputs, tensors["targets"], tensors["ids"], tensors["weights"], tensors.get("predictions"))
