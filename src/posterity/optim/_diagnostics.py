"""What a variational optimizer can say about its posterior while it trains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from posterity.errors import require
from posterity.optim._distributed import whole
from posterity.optim._priors import precision_of, prior_of

if TYPE_CHECKING:
    from posterity.optim._variational import Group, VariationalOptimizer

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
        elbo: −ess · loss − kl, where a loss was given.
        clip_rate: Share of the weights whose next step `clip_radius` would shorten.
        learnt: Share of the Hessian that comes from data: 1 − β₂ᵗ for a constant β₂.
        hessian_bias: Share of the present Hessian that is inflation by a finite 1 − β₂: ½ (1 − β₂) E[(ĥ − h)²] / h².
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


@torch.no_grad()
def diagnose(optimizer: VariationalOptimizer, loss: float | None) -> Diagnostics:
    """Collect the diagnostics of all trained parameters."""
    trained = _trained(optimizer)
    total = sum(p.numel() for _, p in trained)
    sigmas, ratios, kl, clipped = [], [], 0.0, 0
    for group, p in trained:
        weights, precision = whole(p), precision_of(optimizer, p, group)
        kl += _kl(weights, precision, *prior_of(optimizer, p, group))
        clipped += optimizer.clipped(p, group)
        mean, sigma = some(weights, total).abs(), some(precision, total).rsqrt()
        sigmas.append(sigma.cpu())
        ratios.append((mean / sigma).cpu())
    return Diagnostics(
        parameters=total,
        steps=max(optimizer._steps(p) for _, p in trained),
        skipped=max(int(group["skipped"]) for group, _ in trained),
        sigma=quantiles(sigmas),
        signal_to_noise=quantiles(ratios),
        kl=kl,
        elbo=None if loss is None else -float(trained[0][0]["ess"]) * loss - kl,
        clip_rate=clipped / total,
        learnt=learnt(optimizer),
        hessian_bias=_average((p, _bias(optimizer, p, group)) for group, p in trained),
    )


def learnt(optimizer: VariationalOptimizer) -> float:
    """Share of the precisions that comes from data, averaged over the weights."""
    return _average((p, _learnt(optimizer.state.get(p, {}))) for _, p in _trained(optimizer))


def _trained(optimizer: VariationalOptimizer) -> list[tuple[Group, Tensor]]:
    found = [(group, p) for group, p in optimizer._parameters() if p.requires_grad]
    require(bool(found), "params", "at least one that requires a gradient", "only frozen ones")
    return found


def _learnt(state: Mapping[str, Tensor]) -> float:
    if "forgetting" in state:
        return -torch.expm1(-state["forgetting"]).item()
    return float("step" in state)  # once trained, what keeps no average has nothing to forget


def warn_if_hardly_learnt(optimizer: VariationalOptimizer) -> None:
    """Say it when the width of the posterior is mostly that of the start."""
    known = learnt(optimizer)
    if known < 0.5:
        optimizer._warn(
            f"only {known:.0%} of the Hessian has been learnt, the rest is hess_init, and so is the width of the "
            f"posterior: train longer, or with {optimizer.faster}"
        )


def _kl(p: Tensor, precision: Tensor, prior_mean: Tensor, prior_precision: Tensor) -> float:
    """½ Σ [ log(s/s₀) + s₀/s − 1 + s₀ (m − m₀)² ] for precisions s of the posterior and s₀ of the prior."""
    s, s0 = precision.double(), prior_precision.double()
    return 0.5 * float(((s / s0).log() + s0 / s - 1 + s0 * (p.double() - prior_mean.double()) ** 2).sum())


def _bias(optimizer: VariationalOptimizer, p: Tensor, group: Group) -> float:
    spread = optimizer.state.get(p, {}).get("spread")
    if spread is None:
        return 0.0
    rho2 = torch.as_tensor(optimizer.numbers(p, group)["rho2"])
    return 0.5 * float(rho2 * spread)


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
