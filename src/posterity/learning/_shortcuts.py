"""Methods of `fit` as functions of their own, for those who want the posterior alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from posterity.learning._fit import fit
from posterity.posterior import Posterior


def ensemble(
    make_model: Callable[[], nn.Module] | nn.Module, data: Any, *, members: int = 5, **options: Any
) -> Posterior:
    """Train several models from different starts: `fit(make_model, data, method="ensemble", ...).posterior`.

    Args:
        make_model: A function that makes an untrained model, or a model whose copies draw their weights anew.
        data: As for `fit`.
        members: How many.
        **options: As for `fit`; `base` is the method of each member ("adamw" by default).

    References:
        Lakshminarayanan, Pritzel and Blundell, "Simple and scalable predictive uncertainty estimation", 2017.
    """
    return fit(make_model, data, method="ensemble", members=members, **options).posterior


def swag(model: nn.Module, data: Any, **options: Any) -> Posterior:
    """Train with SWAG: `fit(model, data, method="swag", ...).posterior`; `Swag` explains its options."""
    return fit(model, data, method="swag", **options).posterior


def bayes_by_backprop(model: nn.Module, data: Any, **options: Any) -> Posterior:
    """Train a variational network: `fit(model, data, method="bayes_by_backprop", ...).posterior`."""
    return fit(model, data, method="bayes_by_backprop", **options).posterior
