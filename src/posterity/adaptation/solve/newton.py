"""Newton's method for generalised linear models: the exact minimum, with a certificate.

Σ_i w_i ℓ(W φ_i, y_i) + ½ θᵀAθ − bᵀθ,    θ the flat W (K, D)

For canonical links the problem is convex, its Hessian Σ w Λ ⊗ φφᵀ + A is the Gauss-Newton matrix, and the norm of the
final gradient bounds the distance to the minimum.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from posterity.errors import InvalidInput
from posterity.likelihoods import Likelihood
from posterity.linalg import cholesky, solve_psd

STEPS = 100
ROUNDING = 1e-12  # of a sum that is zero, as a share of its largest term
CHUNK = 4096  # examples whose curvature is summed at a time


@dataclass(frozen=True, eq=False)
class ConvexProblem:
    """A penalised loss over weighted rows.

    Args:
        likelihood: What the outputs mean.
        features: φ (N, D).
        targets: Expected targets y (N, K); `as_means` makes them of labels.
        weights: w (N,), not negative.
        precision: A (KD, KD).
        linear: b (KD,).
    """

    likelihood: Likelihood
    features: Tensor
    targets: Tensor
    weights: Tensor
    precision: Tensor
    linear: Tensor

    def outputs(self, theta: Tensor) -> Tensor:
        """f (N, K)."""
        return self.features @ theta.reshape(-1, self.features.shape[1]).T

    def value(self, theta: Tensor) -> Tensor:
        """The objective."""
        losses = self.likelihood.loss(self.outputs(theta), self.targets)
        return (self.weights * losses).sum() + 0.5 * theta @ (self.precision @ theta) - self.linear @ theta

    def gradient(self, theta: Tensor) -> Tensor:
        """Σ w e ⊗ φ + Aθ − b."""
        e = self.weights.unsqueeze(1) * self.likelihood.residual(self.outputs(theta), self.targets)
        return (e.T @ self.features).reshape(-1) + self.precision @ theta - self.linear

    def hessian(self, theta: Tensor) -> Tensor:
        """Σ w Λ ⊗ φφᵀ + A."""
        return self.precision + curvature(self.likelihood, self.features, self.outputs(theta), self.weights)


@dataclass(frozen=True, eq=False)
class Solution:
    """A minimum: θ, the Hessian there, the largest entry of the gradient, and how many steps it took."""

    theta: Tensor
    hessian: Tensor
    residual: float
    steps: int


def minimise(problem: ConvexProblem, start: Tensor) -> Solution:
    """The minimum, by Newton steps that are halved until they help, down to rounding."""
    theta, value = start, problem.value(start)
    steps, polished = 0, False
    for _ in range(STEPS):
        g = problem.gradient(theta)
        step = solve_psd(cholesky(problem.hessian(theta), "curvature of the problem"), g)
        decrement = (g @ step).item()
        if decrement <= 0:
            break
        factor, moved, lower = _search(problem, theta, step, value, decrement)
        steps += 1
        # Below this the objective cannot tell points apart, and full steps only polish the gradient.
        polished = decrement < 1e-14 * (1.0 + abs(value.item()))
        if polished and problem.gradient(moved).abs().max() >= g.abs().max():
            break
        theta, value = moved, lower
        if factor == 0:
            break
    # With a Fisher information for the Hessian (links that are not canonical) polishing goes on for long: no failure.
    if steps == STEPS and not polished:
        raise InvalidInput(
            f"problem: expected Newton's method to converge in {STEPS} steps, got |∇| = {g.abs().max():.3g}"
        )
    return Solution(theta, problem.hessian(theta), problem.gradient(theta).abs().max().item(), steps)


def _search(
    problem: ConvexProblem, theta: Tensor, step: Tensor, value: Tensor, decrement: float
) -> tuple[float, Tensor, Tensor]:
    """The longest of the steps 1, ½, ¼ ... that lowers the objective, up to rounding."""
    factor = 1.0
    slack = 1e-13 * (1.0 + abs(value.item()))
    while factor > 1e-12:
        moved = theta - factor * step
        lower = problem.value(moved)
        if lower <= value - 1e-4 * factor * decrement + slack:
            return factor, moved, lower
        factor /= 2
    return 0.0, theta, value


def curvature(likelihood: Likelihood, features: Tensor, outputs: Tensor, weights: Tensor) -> Tensor:
    """Σ_i w_i Λ_i ⊗ φ_iφ_iᵀ, (KD, KD).

    Where the rows of Λ sum to zero, as those of a softmax do, the blocks beside the diagonal give those on it.
    """
    k, d = outputs.shape[1], features.shape[1]
    total = features.new_zeros(k, d, k, d)
    for rows in torch.arange(len(features), device=features.device).split(CHUNK):
        x, lam = features[rows], likelihood.curvature(outputs[rows]) * weights[rows].reshape(-1, 1, 1)
        sums, sizes = lam.sum(-1).abs(), lam.diagonal(dim1=-2, dim2=-1)
        closed = k > 1 and bool((sums <= ROUNDING * sizes).all())
        for a in range(k):
            for b in range(a + closed, k):
                block = x.T @ (x * lam[:, a, b].unsqueeze(1))
                total[a, :, b] += block
                if a != b:
                    total[b, :, a] += block
                if closed:
                    total[a, :, a] -= block
                    total[b, :, b] -= block
    return total.reshape(k * d, k * d)


def as_means(likelihood: Likelihood, targets: Tensor, outputs: int) -> Tensor:
    """Targets as expected targets (N, K) in float64: labels become unit vectors, missing classes have had no share."""
    means = likelihood.as_mean(targets, outputs).double()
    return F.pad(means, (0, outputs - means.shape[-1]))
