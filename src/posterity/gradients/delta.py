"""The delta method: expectations under q are replaced by values at its mean."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from posterity.errors import expected, require
from posterity.families import (
    Bernoulli,
    Coordinates,
    DiagonalGaussian,
    Family,
    Gaussian,
    MixtureOfGaussians,
    SignBernoulli,
)
from posterity.gradients._base import AnyFamily, at_points, values_at
from posterity.gradients._points import PointEstimator
from posterity.gradients.curvatures import Curvature, Hessian
from posterity.gradients.gaussian import AnyGaussian
from posterity.gradients.losses import AnyLoss, as_function


@dataclass(frozen=True)
class Delta(PointEstimator):
    """E_q[f(θ)] ≈ f(E_q[θ]).

    For a Gaussian, the gradient and the curvature at the mean. Where T(θ) = θ (bits, counts, a fixed covariance)
    μ is the mean itself, and ∇_μ E_q[ℓ] ≈ ∇ℓ(μ).

    Args:
        curvature: The estimate of the Hessian.
        at: For bits, "mode" looks at the most probable state instead: the straight-through estimator.

    Examples:
        >>> q = Gaussian.standard(2)
        >>> linear, quadratic = Delta()(q, lambda theta: (theta**4).sum() + theta.sum())
        >>> linear
        tensor([1., 1.], dtype=torch.float64)
    """

    curvature: Curvature = field(default_factory=Hessian)
    at: Literal["mean", "mode"] = "mean"

    def __post_init__(self) -> None:
        require(self.at in ("mean", "mode"), "at", '"mean" or "mode"', self.at)

    def points(self, q: AnyGaussian) -> tuple[Tensor, Tensor]:
        return q.mean.unsqueeze(0), q.mean.new_ones(1)

    def __call__(self, q: AnyFamily, loss: AnyLoss) -> Coordinates:
        if isinstance(q, Gaussian | DiagonalGaussian | MixtureOfGaussians):
            return super().__call__(q, loss)
        return (at_points(torch.func.grad(as_function(loss)), self._point(q), dims=q.theta_dims),)

    def expectation(self, q: AnyFamily, loss: AnyLoss) -> Tensor:
        """ℓ(m) + ½ tr(∇²ℓ(m) V), to the order at which the gradient in V does not vanish; ℓ(μ) where T(θ) = θ."""
        if isinstance(q, MixtureOfGaussians):
            return super().expectation(q, loss)
        if not isinstance(q, Gaussian | DiagonalGaussian):
            return values_at(loss, self._point(q), dims=q.theta_dims)
        function = as_function(loss)
        diagonal = isinstance(q, DiagonalGaussian)
        _, curvature = self.derivatives(q, function, diagonal)
        spread = curvature * q.variance if isinstance(q, DiagonalGaussian) else (curvature * q.covariance).sum(-1)
        return self.values(q, function) + 0.5 * spread.sum(-1)

    def _point(self, q: AnyFamily) -> Tensor:
        """Where to look, for a family whose expectation μ is the mean of θ."""
        if not isinstance(q, Family) or len(q.natural) != 1 or not torch.equal(q.expectation[0], q.mean):
            raise expected("Delta", "a Gaussian q, or one whose statistic is θ itself", type(q).__name__)
        if self.at == "mean":
            return q.mean
        if not isinstance(q, Bernoulli | SignBernoulli):
            raise expected('Delta(at="mode")', "a q over bits", type(q).__name__)
        low = -1.0 if isinstance(q, SignBernoulli) else 0.0
        return torch.where(q.natural[0] >= 0, 1.0, low).to(q.mean)
