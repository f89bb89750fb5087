"""The gamma function's logarithmic derivatives, as exact as the families need them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

# B_{2k}/2k: log x − ψ(x) = 1/2x + Σ_k (B_{2k}/2k) x^{−2k}, to the last bit from x = 16 on.
_SERIES = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132)
_LARGE = 16.0
LOG_2PI = math.log(2.0 * math.pi)
Function = Callable[..., Tensor]


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


def log_minus_digamma(x: Tensor) -> Tensor:
    """log x − ψ(x), without the cancellation that large x brings."""
    return _by_size(x, lambda x: x.log() - digamma(x), lambda x: (0.5 + _polynomial(_SERIES, x**-2) / x) / x)


def log_minus_digamma_slope(x: Tensor) -> Tensor:
    """The derivative 1/x − ψ'(x) of the same."""
    twice = [2 * k * c for k, c in enumerate(_SERIES, start=1)]
    return _by_size(x, lambda x: 1.0 / x - trigamma(x), lambda x: -(0.5 + _polynomial(twice, x**-2) / x) / x**2)


def log_gamma_ratio(x: Tensor, step: float) -> Tensor:
    """log Γ(x + step) − log Γ(x) − step log x, by Stirling's series where its terms would cancel."""
    return _by_size(
        x,
        lambda x: torch.lgamma(x + step) - torch.lgamma(x) - step * x.log(),
        lambda x: (x + step - 0.5) * torch.log1p(step / x) - step + _stirling(x + step) - _stirling(x),
    )


def gamma_entropy(shape: Tensor) -> Tensor:
    """The entropy a + log Γ(a) + (1 − a)ψ(a) of Gamma(a, 1), whose terms cancel where a is large."""
    return _by_size(
        shape,
        lambda a: a + torch.lgamma(a) + (1.0 - a) * digamma(a),
        lambda a: 0.5 * (LOG_2PI + a.log()) + _stirling(a) + (a - 1.0) * log_minus_digamma(a),
    )


def gamma_divergence(a: Tensor, b: Tensor, ratio: Tensor) -> Tensor:
    """KL between gammas of shapes a and b, the mean of the first ρ times that of the second.

        log Γ(b) − log Γ(a) + (a − b)ψ(a) + b(ρ + log(a/bρ)) − a
            = b(ρ − 1 − log ρ) + ½ log(a/b) − (a − b)(log a − ψ(a)) − r(a) + r(b)

    The first cancels where shapes are large; r(x) is what Stirling's formula lacks of log Γ(x).
    """

    def exact(a: Tensor, b: Tensor, ratio: Tensor) -> Tensor:
        return torch.lgamma(b) - torch.lgamma(a) + (a - b) * digamma(a) + b * (ratio + (a / (b * ratio)).log()) - a

    def series(a: Tensor, b: Tensor, ratio: Tensor) -> Tensor:
        means = b * (ratio - 1.0 - ratio.log())
        return means + 0.5 * (a / b).log() - (a - b) * log_minus_digamma(a) - _remainder(a) + _remainder(b)

    a, b, ratio = torch.broadcast_tensors(a, b, ratio)
    return _by_size(torch.maximum(a, b), exact, series, a, b, ratio)


def _remainder(x: Tensor) -> Tensor:
    """log Γ(x) − (x − ½)log x + x − ½ log 2π: what Stirling's formula lacks."""
    return _by_size(x, lambda x: torch.lgamma(x) - (x - 0.5) * x.log() + x - 0.5 * LOG_2PI, _stirling)


def _stirling(x: Tensor) -> Tensor:
    """The same at large x, 1/12x − 1/360x³ + …."""
    coefficients = [c / (2 * k - 1) for k, c in enumerate(_SERIES, start=1)]
    return _polynomial(coefficients, x**-2) / x


def _polynomial(coefficients: Sequence[float], x: Tensor) -> Tensor:
    """c₀ + c₁x + c₂x² + …, by Horner's rule."""
    return reduce(lambda total, c: total * x + c, reversed(coefficients), torch.zeros_like(x))


def _by_size(size: Tensor, exact: Function, series: Function, *arguments: Tensor) -> Tensor:
    """The series where sizes are large, the exact form elsewhere; both are functions of the arguments (or the size)."""
    arguments, large = arguments or (size,), size >= _LARGE
    if not large.any():
        return exact(*arguments)
    if large.all():
        return series(*arguments)
    return exact(*arguments).masked_scatter(large, series(*(x[large] for x in arguments)))
