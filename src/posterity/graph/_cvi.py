"""Conjugate-computation variational inference: non-conjugate likelihoods as Gaussian sites of a Gaussian process."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from posterity.batches import one_tensor
from posterity.errors import InvalidInput, require, require_whole
from posterity.families import DiagonalGaussian
from posterity.gradients import Estimator, LinearLoss, Quadrature
from posterity.graph.latent import LatentGaussian, Marginals, Sites
from posterity.likelihoods import Likelihood
from posterity.progress import track

_SMALLEST = 1e-6  # ρ below which a bound that still falls is rounding


@dataclass(frozen=True)
class SiteFit:
    """The sites that CVI found, q(f) under them, and the bound before the first step and after each."""

    sites: Sites
    marginals: Marginals
    bounds: list[float]
    steps: int
    converged: bool


def cvi(
    prior: LatentGaussian,
    targets: Tensor,
    likelihood: Likelihood | str,
    *,
    gradient: Estimator | None = None,
    start: Sites | None = None,
    lr: float = 1.0,
    steps: int = 200,
    tolerance: float = 1e-8,
) -> SiteFit:
    """Conjugate-computation variational inference.

    Posterior: a Gaussian process, the prior times one Gaussian site for each observation.

    The prior is conjugate to q and is not changed; each term of the likelihood is replaced by a site whose natural
    parameters follow the rule, with ∇_μ taken at the marginal q(f_n) alone:

        λ̃_n ← (1 − ρ) λ̃_n + ρ ∇_{μ_n} E_q[log p(y_n | f_n)],   λ = λ⁰ + Σ_n λ̃_n.

    The precision of a site is E_q[−∂² log p(y_n | f_n)]. For Gaussian noise it does not depend on q, and one step
    with ρ = 1 is exact regression. ρ is halved where the bound would fall. Where log p is not concave in f, as far from
    the data under a Student-t, the precision of a site is negative, and the prior's has to outweigh it.

    Args:
        prior: The function at the observed inputs, dense or through inducing points.
        targets: y (N,).
        likelihood: p(y | f), one output each.
        gradient: The estimator of ∇_μ; quadrature unless given.
        start: Sites to begin with; none unless given.
        lr: ρ.
        steps: Steps, at most.
        tolerance: Stop when no site moves by more than this, relative to the largest.

    References:
        Khan and Lin, "Conjugate-computation variational inference", 2017. Adam, Chang, Khan and Solin, "Dual
        parameterization of sparse variational Gaussian processes", 2021.
    """
    require(0.0 < lr <= 1.0, "lr", "a number in (0, 1]", lr)
    require_whole("steps", steps)
    gradient, n = gradient or Quadrature(), prior.size
    targets = one_tensor(targets)
    require(targets.shape == (n,), "targets", f"{n}, one for each point", tuple(targets.shape))
    loss = LinearLoss(inputs=torch.eye(n, dtype=torch.float64), targets=targets, likelihood=likelihood)
    sites = start or Sites.none(n)
    require(len(sites.linear) == n, "start", f"{n} sites, one for each point", len(sites.linear))
    here = prior.marginals(sites)
    bounds, change = [_bound(here, gradient, loss)], math.inf
    for _ in track(range(steps), "fitting sites", total=steps, note=lambda: f"bound {bounds[-1]:.6g}"):
        aim = _aim(here, gradient, loss)
        while True:
            new = Sites(*(torch.lerp(old, to, lr) for old, to in zip(_blocks(sites), _blocks(aim), strict=True)))
            try:
                there = prior.marginals(new)
                bound = _bound(there, gradient, loss)
            except InvalidInput:  # sites of a likelihood that is not log-concave can leave no precision
                if lr < _SMALLEST:
                    raise
                bound = -math.inf
            if bound >= bounds[-1] - 1e-9 * (1.0 + abs(bounds[-1])) or (-math.inf < bound and lr < _SMALLEST):
                break
            lr *= 0.5
        change = max(_moved(old, to) for old, to in zip(_blocks(sites), _blocks(new), strict=True))
        sites, here = new, there
        bounds.append(bound)
        if change <= tolerance:
            break
    if change > tolerance:
        warnings.warn(f"sites still move by {change:.2g} after {steps} steps", RuntimeWarning, stacklevel=2)
    return SiteFit(sites, here, bounds, len(bounds) - 1, change <= tolerance)


def _marginal(here: Marginals) -> DiagonalGaussian:
    return DiagonalGaussian(here.mean, 1.0 / here.variance.clamp(min=torch.finfo(here.variance.dtype).tiny))


def _aim(here: Marginals, gradient: Estimator, loss: LinearLoss) -> Sites:
    """The sites −∇_μ E_q[ℓ] at these marginals."""
    linear, quadratic = gradient(_marginal(here), loss)
    return Sites(-linear, 2.0 * quadratic)


def _bound(here: Marginals, gradient: Estimator, loss: LinearLoss) -> float:
    return float(-gradient.expectation(_marginal(here), loss) - here.kl)


def _blocks(sites: Sites) -> tuple[Tensor, Tensor]:
    return sites.linear, sites.precision


def _moved(old: Tensor, new: Tensor) -> float:
    return ((new - old).abs().amax() / old.abs().amax().clamp(min=1.0)).item()
