"""What every batch of inputs is looked at for before a model sees it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from posterity.batches import Batch
from posterity.errors import InvalidInput, expected


def check_inputs(model: nn.Module, batch: Batch) -> None:
    """Raise an error that names the examples whose inputs are not finite, or a dtype that the model does not take."""
    inputs = batch.inputs
    columns = inputs.values() if isinstance(inputs, Mapping) else inputs if isinstance(inputs, tuple) else (inputs,)
    for column in columns:
        if not isinstance(column, Tensor) or not column.is_floating_point():
            continue
        bad = ~column.isfinite().flatten(1).all(1) if column.ndim > 1 else ~column.isfinite()
        if bad.any():
            ids = batch.ids[bad.cpu()].tolist()
            raise InvalidInput(f"inputs: expected finite numbers, got NaN or infinity in the examples {ids[:5]}")
        wanted = next(model.parameters()).dtype
        if column.dtype == torch.float64 != wanted:
            raise expected("inputs", f"the dtype of the model, {wanted}", column.dtype)
