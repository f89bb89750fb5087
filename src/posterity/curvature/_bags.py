"""Bags of embeddings in operations that can be differentiated twice, which torch's own kernel cannot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class WrittenOutBags(TorchFunctionMode):
    """A context in which `F.embedding_bag` of bags (B, T) looks up every row and then sums."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if function is F.embedding_bag and args[0].dim() == 2 and options["max_norm"] is None:
            weights, padding = options["per_sample_weights"], options["padding_idx"]
            return _bag(args[0], args[1], options["mode"], weights, padding)
        return function(*args, **options)


def _bag(index: Tensor, table: Tensor, mode: str, weights: Tensor | None, padding: int | None) -> Tensor:
    """The sum, mean or largest entries (B, width) of the rows that each bag looks up; padding is no row."""
    rows = F.embedding(index, table)  # (B, T, width)
    there = (index != (-1 if padding is None else padding % len(table))).unsqueeze(-1)  # -1 is the last row, say
    if mode == "max":
        return rows.masked_fill(~there, -float("inf")).max(1).values.where(there.any(1), 0.0)
    kept = rows * there if weights is None else rows * there * weights.unsqueeze(-1)
    return kept.sum(1) if mode == "sum" else kept.sum(1) / there.sum(1).clamp_min(1)
