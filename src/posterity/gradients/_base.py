"""The contract of an estimator of ∇_μ E_q[ℓ]."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from posterity.errors import expected, require
from posterity.families import ConditionalFamily, Coordinates, Family
from posterity.gradients.gaussian import AnyGaussian, to_derivatives
from posterity.gradients.losses import AnyLoss, as_function

AnyFamily = Family | ConditionalFamily


class Estimator(ABC):
    """A way to compute ∇_μ E_q[ℓ], exactly or not: the choice that distinguishes one algorithm from another."""

    @abstractmethod
    def __call__(self, q: AnyFamily, loss: AnyLoss) -> Coordinates:
        """∇_μ E_q[ℓ], aligned with `q.natural`; for a Gaussian (E[∇ℓ] − E[∇²ℓ]m, ½E[∇²ℓ]).

        For a mixture, the gradient in the expectations of the joint q(θ, z): E_k[ℓ] − E_K[ℓ] for the log-odds,
        then that of each component as if it were alone.
        """

    def derivatives(self, q: AnyGaussian, loss: AnyLoss, diagonal: bool) -> tuple[Tensor, Tensor]:
        """E_q[∇ℓ] and E_q[∇²ℓ] under a Gaussian: the same in the coordinates that the rule moves it in."""
        return to_derivatives(q.mean, self(q, loss), diagonal)

    @abstractmethod
    def expectation(self, q: AnyFamily, loss: AnyLoss) -> Tensor:
        """E_q[ℓ], as estimated by this estimator."""


def as_family(q: AnyFamily, what: str) -> Family:
    """The same q if it is an exponential family; otherwise an error that names the caller."""
    if not isinstance(q, Family):
        raise expected(what, "an exponential family", type(q).__name__)
    return q


def values_at(loss: AnyLoss, points: Tensor, dims: int = 1) -> Tensor:
    """The loss of each θ in a tensor (*leading, *event), checked to be one number for each."""
    values = at_points(as_function(loss), points, dims=dims)
    leading = points.shape[: points.ndim - dims]
    require(values.shape == leading, "loss", "one number for each θ", f"shape {tuple(values.shape[len(leading) :])}")
    return values


def at_points(function: Callable[..., Any], *points: Tensor, dims: int = 1) -> Any:
    """A function of one θ, applied to all θ in tensors with leading axes at once.

    Args:
        function: Takes a θ from each of the points, returns a tensor or a tuple of tensors.
        points: Tensors (*leading, *event) with the same leading axes.
        dims: Trailing axes of one θ.

    Returns:
        What the function returns, with the leading axes in front.
    """
    leading = points[0].shape[: points[0].ndim - dims]
    flat = [p.reshape(-1, *p.shape[p.ndim - dims :]) for p in points]
    results = torch.func.vmap(function, chunk_size=4096)(*flat)
    if isinstance(results, tuple):
        return tuple(r.reshape(leading + r.shape[1:]) for r in results)
    return results.reshape(leading + results.shape[1:])
