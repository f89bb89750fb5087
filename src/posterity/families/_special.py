"""The gamma function's logarithmic derivatives, as exact as the families need them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# B_{2k}/2k: log x − ψ(x) = 1/2x + Σ_k (B_{2k}/2k) x^{−2k}, to the last bit from x = 16 on.
_SERIES = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132)
_LARGE = 16.0


def trigamma(x: Tensor) -> Tensor:
    """ψ'(x) to full precision; torch.polygamma(1, x) is only good to nine digits."""
    return torch.special.zeta(torch.full_like(x, 2.0), x)


class _Digamma(torch.autograd.Function):
    """ψ, differentiated by `trigamma`; torch's own derivative has its nine digits."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.digamma(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return slopes[0] * trigamma(x)


def digamma(x: Tensor) -> Tensor:
    """ψ(x), with an exact first derivative (of nine digits where a derivative is taken around `torch.func.vmap`)."""
    if not x.requires_grad:
        return torch.digamma(x)  # message passing calls it by the thousand, and a function of our own takes its time
    result: Tensor = _Digamma.apply(x)  # type: ignore[no-untyped-call]
    return result


def log_minus_digamma(x: Tensor) -> tuple[Tensor, Tensor]:
    """log x − ψ(x) and its derivative, without the cancellation that large x brings."""
    small, large = x.clamp(max=_LARGE), x.clamp(min=_LARGE)
    value, slope = 0.5 / large, -0.5 / large**2
    for k, coefficient in enumerate(_SERIES, start=1):
        value = value + coefficient * large ** (-2 * k)
        slope = slope - 2 * k * coefficient * large ** (-2 * k - 1)
    exact, exact_slope = small.log() - torch.digamma(small), 1.0 / small - trigamma(small)
    return torch.where(x < _LARGE, exact, value), torch.where(x < _LARGE, exact_slope, slope)


def log_gamma_ratio(x: Tensor, step: float) -> Tensor:
    """log Γ(x + step) − log Γ(x) − step log x, by Stirling's series where its terms would cancel."""
    small, large = x.clamp(max=_LARGE), x.clamp(min=_LARGE)
    exact = torch.lgamma(small + step) - torch.lgamma(small) - step * small.log()
    series = (large + step - 0.5) * torch.log1p(step / large) - step + _stirling(large + step) - _stirling(large)
    return torch.where(x < _LARGE, exact, series)


def _stirling(x: Tensor) -> Tensor:
    """1/12x − 1/360x³ + …: what Stirling's formula lacks."""
    return sum((c / (2 * k - 1) * x ** (1 - 2 * k) for k, c in enumerate(_SERIES, start=1)), start=torch.zeros_like(x))
