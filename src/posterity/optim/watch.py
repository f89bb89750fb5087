"""A budget that follows the expected gain on rows that are not trained on.

Noise in the weights costs nats on the rows that are trained on. It pays on other rows where the network is
overconfident. The fitted temperature measures the distance: the one at which predictions from K draws would fit those
rows best,

    T = argmin L(T),   L(T) = −mean log p_T(y | x),   p_T ∝ p̄^(1/T),   p̄ = (1/K) Σ_k p(y | x, θ_k).

Above 1 the predictions are overconfident and the budget grows, b ← b · min(T, 2), as long as the possible gain
L(1) − L(T) is worth the price that is paid already. Below 1 it shrinks, b ← b · max(T, 1/2), but never below what the
gap between examples is worth (`posterity.optim.gap`): an average over noise is better there, however sure it is.

How sure it should be is settled at the end. Predictions divide all logits by the T of the lowest loss, now with
p̄ = (1/K) Σ_k softmax(f_k / T) and a penalty on (log T)² that counts for some rows. T is above 1 where a network has
memorised so much that the noise of λ = N, the most there is, leaves it overconfident.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posterity import likelihoods
from posterity.batches import Batch, batches
from posterity.errors import expected, require
from posterity.inputs import attempt
from posterity.likelihoods import Likelihood, classes_last
from posterity.trees import evaluating

ROWS = 500  # that are looked at: one temperature needs no more
DRAWS, FINAL_DRAWS = 4, 16
LOOKS = 50  # during a training of known length
EVERY = 50  # steps between looks, where the length is not known
FROM = 0.1  # of training: before it, predictions say nothing about its end
START, LEAST, MOST = 0.003, 1e-4, 0.3  # the budget, in nats per example
WORTH = 0.2  # of the price paid, that there must be to gain
FEW = 2.0  # rows that the penalty on (log T)² counts for
TEMPERATURES = [2 ** (k / 8) for k in range(-16, 41)]


@dataclass(frozen=True)
class Watch:
    """Rows that are not trained on, and the model whose predictions of them are looked at.

    Args:
        model: The model.
        rows: Inputs and targets.
        law: The likelihood at the moment: training may learn its noise.
    """

    model: nn.Module
    rows: Batch
    law: Callable[[], Likelihood]

    @classmethod
    def of(cls, model: nn.Module, data: Any, likelihood: str | Likelihood | Callable[[], Likelihood]) -> Watch:
        """A watch over at most `ROWS` examples of (inputs, targets), a Dataset or a DataLoader."""
        parts, count = [], 0
        for batch in batches(data, shuffle=True):
            parts.append(batch)
            count += len(batch)
            if count >= ROWS:
                break
        require(count > 0, "data", "at least one example to watch", "none")
        rows = Batch.concatenate(parts)
        rows = rows.take(torch.arange(min(count, ROWS))).to(next(model.parameters()).device)
        if callable(likelihood):
            found = cls(model, rows, likelihood)
        else:
            law = likelihoods.likelihood(likelihood)
            found = cls(model, rows, lambda: law)
        known = found.law()
        if not (known.is_classification or known.noise_precision is not None):
            raise expected("likelihood", "classes or Gaussian noise, whose predictions have a temperature", known.name)
        return found

    @torch.no_grad()
    def outputs(self) -> Tensor:
        """The outputs for all rows, in evaluation mode, with the weights that are in place."""
        with evaluating(self.model):
            f = attempt(self.model, self.rows.inputs).double()
        return classes_last(f) if self.law().has_class_axis else f

    def temperature(self, draws: list[Tensor]) -> tuple[float, float]:
        """The temperature that fits predictions from these outputs best, and the nats per example that it gains."""
        law, f = self.law(), torch.stack(draws)
        y = law.as_targets(f[0], self.rows.targets)
        log_probs = law.log_probs(f)
        if log_probs is None:
            return _gaussian(f, y, law.noise_precision or 1.0)
        mean = (log_probs.logsumexp(0) - math.log(len(draws))).clamp_min(-1e3)
        losses = [-law.log_prob(torch.log_softmax(mean / t, -1), y).mean().item() for t in TEMPERATURES]
        best = min(range(len(losses)), key=losses.__getitem__)
        return TEMPERATURES[best], losses[TEMPERATURES.index(1.0)] - losses[best]

    def output_temperature(self, draws: list[Tensor]) -> float:
        """The temperature of all logits at which predictions from these outputs fit best."""
        law, f = self.law(), torch.stack(draws)
        y = law.as_targets(f[0], self.rows.targets)

        def loss(temperature: float) -> float:
            log_probs = law.log_probs(f / temperature)
            assert log_probs is not None  # of classes
            mean = log_probs.logsumexp(0) - math.log(len(draws))
            penalty = FEW / len(self.rows) * math.log(temperature) ** 2
            return -law.log_prob(mean.clamp_min(-1e3), y).mean().item() + penalty

        return min(TEMPERATURES, key=loss)


def _gaussian(f: Tensor, y: Tensor, precision: float) -> tuple[float, float]:
    """N(m, T v): T is the mean of (y − m)²/v, which gains ½ (T − 1 − log T)."""
    variance = 1 / precision + f.var(0)
    t = max(((y - f.mean(0)).square() / variance).mean().item(), 1e-12)
    return t, 0.5 * (t - 1 - math.log(t))


def adjusted(budget: float, temperature: float, gain: float, paid: float) -> float:
    """The budget after a look.

    Args:
        budget: The budget b so far.
        temperature: The temperature T that would fit predictions best.
        gain: What it would gain, in nats per example.
        paid: The price of the noise at the moment.

    Examples:
        >>> adjusted(0.01, 1.5, gain=0.1, paid=0.01), adjusted(0.01, 1.5, gain=0.001, paid=0.01)
        (0.015, 0.01)
        >>> adjusted(0.01, 0.8, gain=0.001, paid=0.01)
        0.008
    """
    if temperature > 1:
        return min(MOST, budget * min(temperature, 2.0)) if gain > WORTH * paid else budget
    return max(LEAST, budget * max(temperature, 0.5))
