"""A first guess of IVON's hyperparameters from a short probe of a model on its data."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count, islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from posterity import likelihoods
from posterity.batches import Batch, Batches, batches
from posterity.errors import InvalidInput, require_whole
from posterity.inputs import call
from posterity.likelihoods import GaussianLikelihood, Likelihood
from posterity.optim._options import check_number
from posterity.optim.ivon import IVON

Loss = Callable[[nn.Module, Batch], Tensor]
Make = Callable[[Iterable[nn.Parameter]], IVON]
_LOWEST = 1e-3  # learning rate at which a sweep begins


class Suggestion(NamedTuple):
    """Arguments for `IVON`: ``IVON(model.parameters(), **suggestion._asdict())``."""

    lr: float
    ess: float
    hess_init: float


def suggest(
    model: nn.Module,
    data: Any,
    *,
    likelihood: str | Likelihood = "categorical",
    loss: Loss | None = None,
    batch_size: int = 128,
    steps: int = 60,
    tolerance: float = 0.05,
    seed: int = 0,
) -> Suggestion:
    """Propose lr, ess and hess_init; the model is not changed.

    The learning rate is a third of the one at which a sweep from 10⁻³ to 10 stops reducing the loss, or, where `steps`
    steps with that do not reduce it, a third of that, and so on. After those steps `hess_init` is the smallest power of
    √10 whose samples raise the loss by no more than `tolerance` (relative): the widest posterior that does not drown
    the gradients. `ess` is the number of examples. A short training by IVON with these numbers follows; where its loss
    does not fall, `lr` is divided by three once more. Warns where no learning rate or no `hess_init` met the tests.

    Args:
        model: The model to train.
        data: Anything that `posterity.batches` takes.
        likelihood: What the model's outputs mean.
        loss: The mean loss of a model on a batch (`inputs`, `targets`), in place of the likelihood's.
        batch_size: Examples a gradient.
        steps: Length of each of the two short trainings.
        tolerance: Relative increase of the loss that the noise may cause.
        seed: Seed of the batches' order.
    """
    require_whole("steps", steps)
    check_number("tolerance", tolerance, "a number >= 0")
    source = batches(data, batch_size=batch_size, shuffle=True, seed=seed)
    meaning = likelihoods.likelihood(likelihood)
    floor = _floor(meaning)

    def of_likelihood(network: nn.Module, batch: Batch) -> Tensor:
        return meaning.loss(call(network, batch.inputs), batch.targets).mean() - floor

    def loss_here(network: nn.Module, batch: Batch) -> Tensor:
        return (of_likelihood if loss is None else loss)(network, batch.to(next(network.parameters()).device))

    held = list(islice(_forever(source), 4))
    start = _average(model, loss_here, held)
    lr = _learning_rate(model, loss_here, source, steps)
    trained = _trained(model, loss_here, source, steps, _cold(lr))
    while not _average(trained, loss_here, held) < start and lr > _LOWEST:  # a sweep meets high rates for a moment only
        lr /= 3
        trained = _trained(model, loss_here, source, steps, _cold(lr))
    hess_init = _hess_init(trained, loss_here, held, source.n, tolerance)
    while lr > _LOWEST and not _learns(
        Suggestion(lr, float(source.n), hess_init), model, loss_here, source, steps, held
    ):
        lr /= 3
    if lr <= _LOWEST:
        warnings.warn("suggest: no learning rate lowered the loss; the lowest is proposed", stacklevel=2)
    return Suggestion(lr, float(source.n), hess_init)


def _learns(found: Suggestion, model: nn.Module, loss: Loss, source: Batches, steps: int, held: list[Batch]) -> bool:
    """Whether a short training by IVON with the proposed numbers lowers the loss at the mean."""
    make = partial(IVON, **found._asdict())
    return _average(_trained(model, loss, source, steps, make), loss, held) < _average(model, loss, held)


def _floor(likelihood: Likelihood) -> float:
    """The loss of a perfect prediction: a Gaussian's normaliser, no part of what noise may raise, nothing otherwise."""
    zero = torch.zeros(1)
    return float(likelihood.loss(zero, zero)) if isinstance(likelihood, GaussianLikelihood) else 0.0


def _learning_rate(model: nn.Module, loss: Loss, source: Batches, steps: int) -> float:
    """A third of the learning rate at the lowest smoothed loss of a geometric sweep."""
    model = copy.deepcopy(model).train()
    optimizer = _cold(_LOWEST)(model.parameters())
    smooth, best, best_lr = math.nan, math.inf, 0.0
    for batch in islice(_forever(source), steps):
        value = _step(model, loss, optimizer, batch)
        smooth = value if math.isnan(smooth) else 0.7 * smooth + 0.3 * value
        if not math.isfinite(value) or smooth > 2 * best:
            break
        if smooth < best:
            best, best_lr = smooth, optimizer.param_groups[0]["lr"]
        optimizer.param_groups[0]["lr"] *= 10 ** (4 / steps)
    if best_lr == 0.0:
        raise InvalidInput("suggest: expected a finite loss at the start, got NaN or infinity")
    return best_lr / 3


def _trained(model: nn.Module, loss: Loss, source: Batches, steps: int, make: Make) -> nn.Module:
    """A copy of the model after some steps; whether the rate was too high is seen by its loss, not by a warning."""
    model = copy.deepcopy(model).train()
    optimizer = make(model.parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for batch in islice(_forever(source), steps):
            _step(model, loss, optimizer, batch)
    return model


def _hess_init(model: nn.Module, loss: Loss, held: list[Batch], n: int, tolerance: float) -> float:
    """The smallest power of √10 at which the loss of samples stays within the tolerance."""
    limit = (1 + tolerance) * _average(model, loss, held)
    found = None
    for value in (10 ** (k / 2) for k in range(2, -9, -1)):
        if _noisy(model, loss, held, IVON(model.parameters(), lr=0.0, ess=n, hess_init=value)) > limit:
            break
        found = value
    if found is None:
        message = f"suggest: samples raise the loss by more than {tolerance:g} at every hess_init up to 10"
        warnings.warn(f'{message}; a larger ess is needed, or ess="auto"', stacklevel=3)
    return 10.0 if found is None else found


def _cold(lr: float) -> Make:
    """IVON as SGD with momentum: samples equal the mean, without information on the Hessian."""
    return partial(IVON, lr=lr, ess=1e12, weight_decay=0.0, betas=(0.9, 1 - 1e-12))


def _forever(source: Batches) -> Iterator[Batch]:
    return (batch for epoch in count() for batch in source.epoch(epoch))


def _step(model: nn.Module, loss: Loss, optimizer: IVON, batch: Batch) -> float:
    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(model, batch)
        value.backward()
        return value

    return float(optimizer.step(closure))


@torch.no_grad()
def _average(model: nn.Module, loss: Loss, held: list[Batch]) -> float:
    return sum(float(loss(model, batch)) for batch in held) / len(held)


def _noisy(model: nn.Module, loss: Loss, held: list[Batch], optimizer: IVON) -> float:
    total = 0.0
    for batch in held:
        with optimizer.sampled_params():
            total += _average(model, loss, [batch])
    return total / len(held)
