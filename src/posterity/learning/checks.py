"""What data and arguments are looked at for before a model is trained on them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from posterity.batches import Batch
from posterity.errors import InvalidInput, expected, require
from posterity.inputs import tensors
from posterity.likelihoods import Likelihood, classes_last


def check_inputs(model: nn.Module, batch: Batch) -> None:
    """Raise an error that names the examples whose inputs are not finite, or a dtype that the model does not take."""
    for column in tensors(batch.inputs):
        if not column.is_floating_point():
            continue
        bad = ~column.isfinite().flatten(1).all(1) if column.ndim > 1 else ~column.isfinite()
        if bad.any():
            ids = batch.ids[bad.cpu()].tolist()
            raise InvalidInput(f"inputs: expected finite numbers, got NaN or infinity in the examples {ids[:5]}")
        wanted = next(model.parameters()).dtype
        if column.dtype == torch.float64 != wanted:
            raise expected("inputs", f"the dtype of the model, {wanted}", column.dtype)


def check_class_names(names: Sequence[str] | None, likelihood: Likelihood, f: Tensor) -> None:
    """Raise unless there is a name for each class: a posterior with other names could not predict."""
    if names is not None and likelihood.has_class_axis:
        classes = classes_last(f).shape[-1]
        require(len(names) == classes, "class_names", f"{classes} names, one a class", len(names))
