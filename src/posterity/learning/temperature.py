"""The temperature of a Laplace posterior: the largest at which training predictions are about as sure as they are good.

Where a network fits its labels, the curvature of the loss nearly vanishes. A Laplace posterior is then about as wide as
its prior, and its predictions are far less confident than they could be. The temperature T scales the covariance V of
the outputs. It is the largest T ≤ 1 with

    mean_n [ H(p_T(· | x_n)) + log p_T(y_n | x_n) ]  ≤  0.03,    p_T(y | x) = E[ p(y | f) ],   f ~ N(f(x, θ*), T V(x)),

over training examples: predictions that are as good as they are confident have an entropy H equal to their loss on
average, so that the left side measures underconfidence in nats. It also may be the T that raises the loss of these
examples by a thousandth, so that predictions which are underconfident at θ* itself keep some width.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor, nn

from posterity.batches import Batch, Batches
from posterity.curvature import Covariance, prediction_covariance
from posterity.curvature.covariance import fitted
from posterity.inputs import call
from posterity.likelihoods import Likelihood
from posterity.linalg import root_psd
from posterity.noise import Key, normal

UNDERCONFIDENCE = 0.03  # nats for each example
RISE = 1e-3  # of the loss, which any posterior may cost
TEMPERATURES = tuple(10 ** (-k / 4) for k in range(24, -1, -1))
ROWS = 1000  # examples that are looked at
ROOM = 2**24  # numbers in their covariances
DRAWS = 32


def default_temperature(model: nn.Module, data: Batches, covariance: Covariance, likelihood: Likelihood) -> float:
    """The temperature that training examples suggest; 1 where targets are not classes, or too many for a covariance.

    Args:
        model: The trained model, in evaluation mode.
        data: Its training data, of which at most 1000 examples are looked at.
        covariance: Σ of the weights at temperature 1.
        likelihood: What the outputs mean.
    """
    if not likelihood.is_classification:
        return 1.0
    tangents = _tangents(model, data, covariance, likelihood)
    if not tangents:
        return 1.0
    at_mean = _confidence(tangents, likelihood, 0.0).loss

    def fine(temperature: float) -> bool:
        found = _confidence(tangents, likelihood, temperature)
        return found.entropy - found.loss <= UNDERCONFIDENCE or found.loss <= (1 + RISE) * at_mean

    low, high = 0, len(TEMPERATURES)  # the first one is taken if none is fine
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fine(TEMPERATURES[middle]) else (low, middle)
    return TEMPERATURES[low]


class Tangent(NamedTuple):
    """Gaussian outputs of a batch: mean f (B, ..., K), a root of their covariance (B, ..., K, K), and the targets."""

    f: Tensor
    root: Tensor
    y: Tensor


class Confidence(NamedTuple):
    """Mean loss and mean entropy of predictions, in nats."""

    loss: float
    entropy: float


@torch.no_grad()
def _tangents(model: nn.Module, data: Batches, covariance: Covariance, likelihood: Likelihood) -> list[Tangent]:
    parameters = dict(model.named_parameters())
    device = next(iter(parameters.values())).device
    covariance = fitted(covariance, parameters)
    found: list[Tangent] = []
    room = ROOM
    for batch in _some(data):
        batch = batch.to(device)
        f = call(model, batch.inputs).double()
        rows = min(len(f), room // max(1, f[0].numel() * f.shape[-1]))
        if rows == 0:
            break
        batch, f = batch.take(torch.arange(rows, device=device)), f[:rows]
        V = prediction_covariance(model, batch.inputs, covariance).double()
        found.append(Tangent(f, root_psd(V), likelihood.as_targets(f, batch.targets)))
        room -= V.numel()
    return found


def _some(data: Batches) -> Iterator[Batch]:
    """About 1000 examples, evenly spread over the data; of a loader the first ones."""
    if not data.has_positions:
        return islice(data, -(-ROWS // max(1, data.batch_size)))
    positions = torch.linspace(0, data.n - 1, min(data.n, ROWS), dtype=torch.float64).round().long()
    return iter(data.only(positions))


def _confidence(tangents: list[Tangent], likelihood: Likelihood, temperature: float) -> Confidence:
    losses, entropies = [], []
    for f, root, y in tangents:
        half = torch.stack(
            [normal(Key(0, 0, k), f.shape[-1], device=f.device, dtype=f.dtype) for k in range(DRAWS // 2)]
        )
        noise = torch.einsum("...kl,sl->s...k", root, torch.cat((half, -half)))
        log_probs = likelihood.log_probs(f + temperature**0.5 * noise)
        assert log_probs is not None  # of classes
        probs = log_probs.exp().mean(0)
        losses.append(-likelihood.log_prob(probs.clamp_min(1e-30).log(), y).flatten())
        entropies.append(torch.special.entr(probs).sum(-1).flatten())
    return Confidence(torch.cat(losses).mean().item(), torch.cat(entropies).mean().item())
