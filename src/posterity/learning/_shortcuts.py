"""Methods of `fit` as functions that return the posterior alone."""

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

    Returns:
        The posterior: an `Ensemble` of points, or a `Mixture` where members are Gaussians.

    Examples:
        >>> import torch
        >>> x, y = torch.randn(40, 3), torch.arange(40) % 2
        >>> posterior = ensemble(lambda: nn.Linear(3, 2), (x, y), members=3, epochs=1)
        >>> posterior.structure.kind, len(posterior.structure.members)
        ('ensemble', 3)

    References:
        Lakshminarayanan, Pritzel and Blundell, "Simple and scalable predictive uncertainty estimation", 2017.
    """
    return fit(make_model, data, method="ensemble", members=members, **options).posterior


def swag(model: nn.Module, data: Any, **options: Any) -> Posterior:
    """Train with SWAG, a Gaussian around the average of SGD's path: `fit(model, data, method="swag", ...).posterior`.

    Args:
        model: The model; training goes on from the weights it has, in place.
        data: As for `fit`.
        **options: As for `fit`; `rank` is the number of directions kept (`posterity.learning.learners.SWAGLearner`).

    Returns:
        The posterior, a `LowRank` Gaussian.

    Examples:
        >>> import torch
        >>> x, y = torch.randn(40, 3), torch.arange(40) % 2
        >>> swag(nn.Linear(3, 2), (x, y), rank=2, epochs=4).structure.kind
        'low_rank'

    References:
        Maddox et al., "A simple baseline for Bayesian uncertainty in deep learning", 2019.
    """
    return fit(model, data, method="swag", **options).posterior


def bayes_by_backprop(model: nn.Module, data: Any, **options: Any) -> Posterior:
    """Train mean and width of every weight: `fit(model, data, method="bayes_by_backprop", ...).posterior`.

    Args:
        model: The model; the means go on from the weights it has, in place.
        data: As for `fit`.
        **options: As for `fit`; `prior` may be a precision, a `Diagonal` or an earlier posterior.

    Returns:
        The posterior, a `Diagonal` Gaussian.

    Examples:
        >>> import torch
        >>> x, y = torch.randn(40, 3), torch.arange(40) % 2
        >>> bayes_by_backprop(nn.Linear(3, 2), (x, y), epochs=1).structure.kind
        'diagonal'

    References:
        Blundell, Cornebise, Kavukcuoglu and Wierstra, "Weight uncertainty in neural networks", 2015.
    """
    return fit(model, data, method="bayes_by_backprop", **options).posterior
