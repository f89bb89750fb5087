"""Expectation to shape parameters where no closed form exists: two Newton iterations that converge from any start.

Each ends with one Newton step on the attached graph, so that the result is differentiable once in the expectations
(implicit function theorem) although the iterations themselves are not recorded.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posterity.errors import Undefined
from posterity.families.special import log_minus_digamma, log_minus_digamma_slope, trigamma

_MAX_STEPS = 200


def _gap(shape: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """d log a − Σ_{i<d} ψ(a − i/2) and its derivative in a."""
    halves = 0.5 * torch.arange(dim, dtype=shape.dtype, device=shape.device)
    each, ratio = shape.unsqueeze(-1) - halves, halves / shape.unsqueeze(-1)
    value, slope = log_minus_digamma(each) - torch.log1p(-ratio), log_minus_digamma_slope(each) - ratio / each
    return value.sum(-1), slope.sum(-1)


def shape_from_gap(gap: Tensor, start: Tensor | None = None, dim: int = 1) -> Tensor:
    """Solve d log a − Σ_{i<d} ψ(a − i/2) = gap for a > (d − 1)/2.

    With d = 1 this finds the shape of a gamma from log E[x] − E[log x]; in general half the degrees of freedom of a
    Wishart from log det E[X] − E[log det X]. On logarithmic axes, log gap against log(a − (d − 1)/2), the curve is
    close to a line of slope −1 at both ends, which is why Newton's method gets there from any start.

    Args:
        gap: Jensen's gap, positive, any shape.
        start: Where to begin; the asymptotic solution d(d + 1)/(4 gap) by default.
        dim: d.

    Examples:
        >>> shape = shape_from_gap(torch.tensor(0.5, dtype=torch.float64))
        >>> round(float(shape.log() - shape.digamma()), 12)
        0.5
    """
    edge, target = 0.5 * (dim - 1), gap.detach().log()
    asymptotic = edge + dim * (dim + 1) / 4.0 / gap.detach()
    logarithm = (_first(start, asymptotic) - edge).log()
    for _ in range(_MAX_STEPS):
        value, slope = _gap(edge + logarithm.exp(), dim)
        step = (value.log() - target) * value / (slope * logarithm.exp())
        logarithm = logarithm - step.clamp(-8.0, 8.0)  # for large d the curve has a flat stretch that overshoots
        if _negligible(step):
            shape = edge + logarithm.exp()
            value, slope = _gap(shape, dim)
            return shape - (value - gap) / slope
    raise Undefined(f"no shape found for gaps between {gap.min():.3g} and {gap.max():.3g}")


def concentration_from_mean_log(mean_log: Tensor, start: Tensor | None = None) -> Tensor:
    """Solve ψ(α_k) − ψ(Σα) = E[log x_k] for the concentration α of a Dirichlet (..., K).

    Newton's method with Armijo's line search on the strictly convex F(α) = Σ log Γ(α_k) − log Γ(Σα) − ⟨α, E log x⟩,
    which has its minimum at the solution and rises towards the border, so every start gets there. The Hessian
    diag ψ'(α) − ψ'(Σα)11ᵀ is inverted by Sherman-Morrison.

    References:
        Minka, "Estimating a Dirichlet distribution", 2000.
    """
    dtype, mean_log = mean_log.dtype, mean_log.double()  # in single precision the line search gets stuck
    target = mean_log.detach()
    rounding = 64.0 * torch.finfo(target.dtype).eps * (1.0 + target.abs())
    alpha = _first(start, _default_concentration(target))
    for _ in range(_MAX_STEPS):
        gradient, step = _dirichlet_newton(alpha, target)
        decrement = (gradient * step).sum(-1, keepdim=True).clamp(min=0.0).sqrt()
        alpha = _line_search(alpha, step, decrement, target)
        if _negligible(torch.where(gradient.abs() <= rounding, 0.0, decrement)):
            return (alpha - _dirichlet_newton(alpha, mean_log)[1]).to(dtype)
    raise Undefined(f"no concentration found for mean logarithms between {target.min():.3g} and {target.max():.3g}")


def _dirichlet_newton(alpha: Tensor, mean_log: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient g of F and Newton's step H⁻¹g, to be subtracted."""
    total = alpha.sum(-1, keepdim=True)
    gradient = alpha.digamma() - total.digamma() - mean_log
    diagonal, common = trigamma(alpha), trigamma(total)
    shift = (gradient / diagonal).sum(-1, keepdim=True) / (1.0 / common - (1.0 / diagonal).sum(-1, keepdim=True))
    return gradient, (gradient + shift) / diagonal


def _line_search(alpha: Tensor, step: Tensor, decrement: Tensor, mean_log: Tensor) -> Tensor:
    """Armijo's rule: halve the step until F falls by a quarter of what its slope promises, or by rounding."""

    def objective(a: Tensor) -> Tensor:
        return (torch.lgamma(a) - a * mean_log).sum(-1, keepdim=True) - torch.lgamma(a.sum(-1, keepdim=True))

    terms = torch.lgamma(alpha.sum(-1, keepdim=True)).abs() + (alpha * mean_log).abs().sum(-1, keepdim=True)
    limit = objective(alpha) + 16.0 * torch.finfo(alpha.dtype).eps * (1.0 + terms)
    size = (0.9 / (step / alpha).amax(-1, keepdim=True).clamp(min=0.9)).clamp(max=1.0)  # stays inside α > 0
    for _ in range(60):
        too_long = objective(alpha - size * step) > limit - 0.25 * size * decrement**2
        if not too_long.any():
            break
        size = torch.where(too_long, 0.5 * size, size)
    return alpha - size * step


def _default_concentration(mean_log: Tensor) -> Tensor:
    """Large-α asymptotics Σ e^{E log x_k} ≈ 1 − (K − 1)/2Σα, held above the small-α asymptotics α_k ≈ −1/E log x_k."""
    total = 0.5 * (mean_log.shape[-1] - 1) / -torch.expm1(mean_log.logsumexp(-1, keepdim=True))
    return torch.maximum(total * mean_log.softmax(-1), 0.5 / (1.0 - mean_log))


def _first(start: Tensor | None, default: Tensor) -> Tensor:
    """The start, unless there is none or it belongs to a batch of another shape."""
    return start.detach().to(default) if start is not None and start.shape == default.shape else default


def _negligible(step: Tensor) -> bool:
    """Half the digits are right: the next quadratic step gives all of them."""
    return bool((step.abs() <= torch.finfo(step.dtype).eps ** 0.5).all())
