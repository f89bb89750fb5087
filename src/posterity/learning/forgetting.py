"""Yesterday's posterior as today's prior, with a part of it forgotten."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from posterity.batches import Batch, batches
from posterity.errors import expected, require
from posterity.inputs import call
from posterity.posterior import Diagonal, Posterior
from posterity.trees import evaluating

RATES = (0.0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95, 1.0)
DRAWS = 32
LOOKED_AT = 2048  # examples that choose


def forgetting_prior(model: nn.Module, data: Any, prior: Any, forget: float | str) -> tuple[Posterior, float]:
    """A posterior that is to be a prior, with the share `forget` of its data forgotten, and that share.

    "auto" takes the share under which the new data are most likely, by draws from the discounted posterior.
    """
    if not isinstance(prior, Posterior):
        raise expected("forget", "an earlier Posterior as `prior` beside it", type(prior).__name__)
    if forget != "auto":
        number = isinstance(forget, (int, float)) and not isinstance(forget, bool)
        require(number and 0 <= float(forget) <= 1, "forget", "a number in [0, 1] or 'auto'", forget)
        return prior.discounted(float(forget)), float(forget)
    prior.check(model)
    batch = next(iter(batches(data, batch_size=LOOKED_AT, shuffle=True)))
    found = [prior.discounted(rate) for rate in RATES]
    scores = [_log_predictive(model, posterior, batch) for posterior in found]
    best = max(range(len(found)), key=lambda k: scores[k])
    return found[best], RATES[best]


def with_past(posterior: Posterior, past: Posterior, forget: float) -> Posterior:
    """A posterior that was trained with a discounted one as prior, as the posterior of all data that are kept.

    λ = λ₀ + (1 − γ)(λ_past − λ₀) + λ_new: its prior is λ₀, that of the past without its data, and it counts
    (1 − γ) n_past + n_new examples. With the discounted posterior as prior, the next chunk could forget nothing but
    this one.
    """
    ratio = past.temperature / posterior.temperature
    before = past.prior_without_data
    prior = Diagonal(before.mean, {name: ratio * p for name, p in before.precision.items()})
    n = round((1 - forget) * past.n) + posterior.n
    return replace(posterior, prior=prior, n=n, ess=n / posterior.temperature)


@torch.no_grad()
def _log_predictive(model: nn.Module, posterior: Posterior, batch: Batch) -> float:
    """Σ_i log (1/S) Σ_s p(y_i | x_i, θ_s)."""
    batch = batch.to(next(model.parameters()).device)
    losses = []
    with posterior.applied(model), evaluating(model):
        for k in range(DRAWS):
            posterior.apply(model, posterior.sample(k))
            f = call(model, batch.inputs)
            losses.append(posterior.likelihood.loss(f, posterior.likelihood.as_targets(f, batch.targets)).double())
    return (torch.logsumexp(-torch.stack(losses), 0) - math.log(DRAWS)).sum().item()
