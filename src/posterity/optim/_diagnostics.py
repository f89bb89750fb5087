"""What a variational optimizer reports about its posterior during training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from posterity.errors import require

Quantiles = tuple[float, float, float]
_SAMPLED = 1_000_000  # weights that quantiles are computed from


@dataclass(frozen=True)
class Diagnostics:
    """The state of training in a few numbers.

    Attributes:
        parameters: Number of weights with a posterior.
        steps: Updates taken.
        skipped: Steps skipped because of gradients that were NaN, infinite or too large.
        sigma: 5 %, 50 % and 95 % quantiles of the posterior standard deviation σ.
        signal_to_noise: The same quantiles of |m| / σ.
        kl: KL(posterior ‖ prior) in nats; infinite under a flat prior.
        elbo: −ess · loss − kl, where a loss was given; None for a posterior of `Variational` that is colder than N.
        clip_rate: Share of the weights whose next step `clip_radius` would shorten.
        learnt: Share of the Hessian that comes from data: 1 − β₂ᵗ for a constant β₂.
        hessian_bias: Share of the present Hessian that is inflation by a finite 1 − β₂: ½ (1 − β₂) E[(ĥ − h)²] / h².
        temperature: N/λ, where λ is found by training (`Variational`).
        price: Nats per example that the noise in the weights costs, likewise.
        effective_parameters: P̂ = 2λ · price, likewise; it may exceed N.
    """

    parameters: int
    steps: int
    skipped: int
    sigma: Quantiles
    signal_to_noise: Quantiles
    kl: float
    elbo: float | None
    clip_rate: float
    learnt: float
    hessian_bias: float
    temperature: float | None = None
    price: float | None = None
    effective_parameters: float | None = None


@dataclass(frozen=True)
class DiagnosedWeights:
    """The figures of one parameter.

    Attributes:
        weights: Its mean.
        precision: Its posterior precision.
        prior: Mean and precision of its prior.
        state: Its state.
        clipped: How many weights a bound on the step holds back.
        rho: How fast the average in its precision moves; 0 where nothing is known of its spread.
    """

    weights: Tensor
    precision: Tensor
    prior: tuple[Tensor, Tensor]
    state: Mapping[str, Tensor]
    clipped: int
    rho: float | Tensor


@torch.no_grad()
def diagnose(
    parts: Iterable[DiagnosedWeights], *, steps: int, skipped: int, ess: float, loss: float | None
) -> Diagnostics:
    """Collect the diagnostics of all trained parameters."""
    parts = list(parts)
    require(bool(parts), "params", "at least one that requires a gradient", "only frozen ones")
    total = sum(part.weights.numel() for part in parts)
    sigmas, ratios, kl = [], [], 0.0
    for part in parts:
        kl += _kl(part.weights, part.precision, *part.prior)
        mean, sigma = some(part.weights, total).abs(), some(part.precision, total).rsqrt()
        sigmas.append(sigma.cpu())
        ratios.append((mean / sigma).cpu())
    return Diagnostics(
        parameters=total,
        steps=steps,
        skipped=skipped,
        sigma=quantiles(sigmas),
        signal_to_noise=quantiles(ratios),
        kl=kl,
        elbo=None if loss is None else -ess * loss - kl,
        clip_rate=sum(part.clipped for part in parts) / total,
        learnt=learnt({part.weights: part.state for part in parts}),
        hessian_bias=_average((part.weights, _bias(part)) for part in parts),
    )


def learnt(states: Mapping[Tensor, Mapping[str, Tensor]]) -> float:
    """Share of the precisions that comes from data, averaged over the weights, from the state of each parameter."""
    require(bool(states), "params", "at least one that requires a gradient", "only frozen ones")
    return _average((p, _learnt(state)) for p, state in states.items())


def _learnt(state: Mapping[str, Tensor]) -> float:
    if "forgetting" in state:
        return -torch.expm1(-state["forgetting"]).item()
    return float("step" in state)  # once trained, what keeps no average has nothing to forget


def hardly_learnt(known: float, faster: str) -> str | None:
    """The warning for a posterior whose width is mostly the initial one."""
    if known >= 0.5:
        return None
    return (
        f"only {known:.0%} of the Hessian has been learnt, the rest is hess_init, and so is the width of the "
        f"posterior: train longer, or with {faster}"
    )


def _kl(p: Tensor, precision: Tensor, prior_mean: Tensor, prior_precision: Tensor) -> float:
    """½ Σ [ log(s/s₀) + s₀/s − 1 + s₀ (m − m₀)² ] for precisions s of the posterior and s₀ of the prior."""
    s, s0 = precision.double(), prior_precision.double()
    return 0.5 * float(((s / s0).log() + s0 / s - 1 + s0 * (p.double() - prior_mean.double()) ** 2).sum())


def _bias(part: DiagnosedWeights) -> float:
    return 0.5 * float(torch.as_tensor(part.rho) * part.state["spread"]) if "spread" in part.state else 0.0


def _average(values: Iterator[tuple[Tensor, float]]) -> float:
    pairs = [(p.numel(), value) for p, value in values]
    return sum(n * value for n, value in pairs) / sum(n for n, _ in pairs)


def some(t: Tensor, total: int) -> Tensor:
    """Some of the weights of a tensor, if there are very many in all."""
    return t.detach().float().reshape(-1)[:: 1 + total // _SAMPLED]


def quantiles(parts: list[Tensor]) -> Quantiles:
    """The 5 %, 50 % and 95 % quantiles of all parts."""
    every = torch.cat(parts)
    low, middle, high = torch.quantile(every, every.new_tensor([0.05, 0.5, 0.95])).tolist()
    return low, middle, high
