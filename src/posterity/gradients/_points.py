"""Estimators that look at the loss at weighted points of Gaussians: means, samples, quadrature grids."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from posterity.families import Coordinates, DiagonalGaussian, FixedGaussian, MixtureOfGaussians
from posterity.gradients._base import AnyFamily, Estimator, at_points, values_at
from posterity.gradients.curvatures import Curvature
from posterity.gradients.gaussian import AnyGaussian, as_gaussian, from_derivatives, times
from posterity.gradients.losses import AnyLoss, Loss, as_function


class PointEstimator(Estimator):
    """E_q[f] ≈ Σ_p w_p f(θ_p), for a Gaussian or each component of a mixture.

    The theorems of Bonnet and Price turn gradients of expectations into expectations of gradients:

        ∇_m E_q[ℓ] = E_q[∇ℓ],   ∇_V E_q[ℓ] = ½ E_q[∇²ℓ]   ⟹   ∇_μ E_q[ℓ] = (E[∇ℓ] − E[∇²ℓ]m, ½E[∇²ℓ])
    """

    curvature: Curvature

    @abstractmethod
    def points(self, q: AnyGaussian) -> tuple[Tensor, Tensor]:
        """Points θ, (P, *batch, d), and their weights, (P,)."""

    def __call__(self, q: AnyFamily, loss: AnyLoss) -> Coordinates:
        if isinstance(q, MixtureOfGaussians):
            each = self.values(q.conditional, as_function(loss))
            return (each[..., :-1] - each[..., -1:], *self(q.conditional, loss))
        gaussian, function = as_gaussian(q, type(self).__name__), as_function(loss)
        if isinstance(gaussian, FixedGaussian):
            return (self.slope(gaussian, function),)
        diagonal = isinstance(gaussian, DiagonalGaussian)
        return from_derivatives(gaussian.mean, *self.derivatives(gaussian, function, diagonal), diagonal)

    def expectation(self, q: AnyFamily, loss: AnyLoss) -> Tensor:
        if isinstance(q, MixtureOfGaussians):
            return (q.weights * self.expectation(q.conditional, loss)).sum(-1)
        return self.values(as_gaussian(q, type(self).__name__), as_function(loss))

    def values(self, q: AnyGaussian, loss: Loss) -> Tensor:
        """E_q[ℓ] of each member of the batch."""
        theta, weights = self.points(q)
        return average(weights, values_at(loss, theta))

    def slope(self, q: AnyGaussian, loss: Loss) -> Tensor:
        """E_q[∇ℓ] alone."""
        theta, weights = self.points(q)
        gradients = at_points(torch.func.grad(loss), theta)
        return average(weights, gradients)

    def derivatives(self, q: AnyGaussian, loss: AnyLoss, diagonal: bool) -> tuple[Tensor, Tensor]:
        # Not by way of E[∇ℓ] − E[∇²ℓ]m, in which a large curvature drowns the gradient.
        theta, weights = self.points(q)
        pull, function = times(q.precision, theta - q.mean, diagonal), as_function(loss)
        gradients, curvatures = at_points(lambda t, p: self.curvature(function, t, p, diagonal), theta, pull)
        return average(weights, gradients), average(weights, curvatures)


def average(weights: Tensor, values: Tensor) -> Tensor:
    """Σ_p w_p v_p over the leading axis."""
    return torch.einsum("p,p...->...", weights, values)
