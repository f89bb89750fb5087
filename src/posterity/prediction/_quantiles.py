"""Quantiles: over draws, and of the mixture of distributions that the draws predict."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from posterity.errors import Undefined
from posterity.likelihoods import GaussianLikelihood, Likelihood, PoissonLikelihood

STEPS = 64  # halvings of the bracket: past the precision of float64


def empirical_quantile(draws: Tensor, levels: Tensor) -> Tensor:
    """Quantiles (Q, ...) over the first axis, linear between order statistics, of tensors of any size."""
    ordered = draws.sort(0).values
    position = levels * (len(draws) - 1)
    below = position.floor().long().clamp(max=len(draws) - 1)
    above = (below + 1).clamp(max=len(draws) - 1)
    weight = (position - below).reshape(-1, *[1] * (draws.ndim - 1))
    return torch.lerp(ordered[below], ordered[above], weight.to(ordered.dtype))


def mixture_quantile(likelihood: Likelihood, f: Tensor, levels: Tensor) -> Tensor:
    """Solve (1/S) Σ_s F(y | f_s) = q for y, by bisection.

    Args:
        likelihood: Gaussian or Poisson.
        f: Outputs of the draws (S, ...).
        levels: Levels q, (Q,).

    Returns:
        Quantiles (Q, ...); for counts the smallest whole number y with P(Y ≤ y) ≥ q.
    """
    if isinstance(likelihood, GaussianLikelihood):
        sigma = likelihood.precision**-0.5
        return torch.stack([_gaussian_mixture(f.double(), sigma, q) for q in levels.double()]).to(f.dtype)
    if isinstance(likelihood, PoissonLikelihood):
        return torch.stack([_poisson_mixture(f.double().exp(), q) for q in levels.double()]).to(f.dtype)
    raise Undefined(f"quantiles: not defined for the targets of a {likelihood.name} likelihood")


def _gaussian_mixture(f: Tensor, sigma: float, q: Tensor) -> Tensor:
    # The quantile lies between the smallest and the largest quantile of the single Gaussians.
    shift = sigma * torch.special.ndtri(q)
    low, high = _bisect(lambda y: torch.special.ndtr((y - f) / sigma).mean(0), f.amin(0) + shift, f.amax(0) + shift, q)
    return 0.5 * (low + high)


def _poisson_mixture(rate: Tensor, q: Tensor) -> Tensor:
    # P(Y ≤ y) = Q(y + 1, rate) is continuous and increasing in real y > −1; Markov's inequality bounds its quantile.
    low = torch.full_like(rate[0], -1.0)
    low, _ = _bisect(lambda y: torch.special.gammaincc(y + 1.0, rate).mean(0), low, rate.mean(0) / (1 - q) + 1.0, q)
    return low.ceil().clamp_min(0.0) + 0.0  # not −0


def _bisect(cdf: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    for _ in range(STEPS):
        middle = 0.5 * (low + high)
        beyond = cdf(middle) >= q
        low, high = torch.where(beyond, low, middle), torch.where(beyond, middle, high)
    return low, high
