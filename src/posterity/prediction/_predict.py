"""`predict`: put inputs to a posterior, get its predictive distribution back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, closing
from itertools import count
from typing import Any

import torch
from torch import nn

from posterity.errors import expected, require
from posterity.inputs import Inputs, move, tensors
from posterity.posterior import Posterior
from posterity.posterior.private import private
from posterity.prediction._linearised import linearised, probit
from posterity.prediction._prediction import Prediction
from posterity.prediction._question import PredictiveMethod, Question
from posterity.prediction._running import OutputStatistics, joined
from posterity.prediction._sampled import sampled
from posterity.prediction._stream import grouped, stream
from posterity.progress import track

_METHODS: dict[str, Callable[[Question], AbstractContextManager[PredictiveMethod]]] = {
    "sampled": sampled,
    "linearised": linearised,
    "probit": probit,
}


@torch.no_grad()
def predict(
    model: nn.Module,
    posterior: Posterior,
    inputs: Any,
    samples: int = 64,
    *,
    method: str | None = None,
    seed: int = 0,
    batch_size: int = 256,
    keep_samples: bool | None = None,
    class_axis: int | None = None,
) -> Prediction:
    """The posterior predictive p(y | x) = E_q[p(y | x, θ)] of many inputs.

    The model is only read: a private double of it runs, in evaluation mode, so several threads may predict with one
    model. Draws are numbered: the same seed gives the same prediction, for any batch size.

    Args:
        model: The network that the posterior belongs to.
        posterior: A posterior of any structure. An ensemble uses each member once (at most `samples`);
            a dropout posterior with its dropout modules on, one mask for each draw.
        inputs: Inputs (a tensor, an array, a mapping of them that the model takes as keywords), `(inputs, targets)`,
            a Dataset, a DataLoader or any iterable of batches; targets are not looked at.
        samples: Number of draws; 0 predicts with the mean weights.
        method: "sampled" averages over drawn networks. "linearised" replaces the network by its tangent at the mean:
            exact for regression, draws of the outputs otherwise. "probit" approximates that average in closed form.
            By default what the posterior is made for: "linearised" after `laplace` and `adapt`, else "sampled".
        seed: Seed of the draws.
        batch_size: Inputs at a time, where `inputs` does not come in batches.
        keep_samples: Keep the outputs of every draw, which quantiles need. By default regressions and counts keep them
            and classifications do not.
        class_axis: Where the outputs have their classes. Unless given, on axis 1 of maps (N, K, H, W), otherwise
            last. Predictions always have them last.

    Returns:
        A `Prediction` with one row for each input, on the device that the inputs came from.

    Examples:
        >>> from posterity.posterior import Diagonal
        >>> from posterity.trees import snapshot, trainable
        >>> model = nn.Linear(2, 3)
        >>> weights = snapshot(trainable(model))
        >>> prior = Diagonal.isotropic(weights, 1.0)
        >>> posterior = Posterior.of(model, prior, prior=prior, n=10, ess=10, likelihood="categorical")
        >>> p = predict(model, posterior, torch.zeros(5, 2), samples=8)
        >>> p
        Prediction(categorical, (5, 3))
        >>> bool((p.entropy >= p.mutual_information).all())
        True
    """
    if not isinstance(posterior, Posterior):
        raise expected("posterior", "a Posterior", type(posterior).__name__)
    if method is None:
        method = posterior.predictive if samples else "sampled"  # without draws, at the mean
    if method not in _METHODS:
        raise expected("method", f"one of {sorted(_METHODS)}", method)
    classes = posterior.likelihood.is_classification
    exact = posterior.likelihood.noise_precision is not None and (method == "linearised" or samples == 0)
    if method == "probit" and keep_samples:
        raise expected("keep_samples", "a method that draws ('sampled' or 'linearised')", method)
    keep = keep_samples if keep_samples is not None else not (classes or exact)
    batches, total = stream(inputs, batch_size)
    with private(model, posterior) as own:
        question = Question(own, posterior, samples, seed, keep, class_axis)
        with _METHODS[method](question) as ready:
            statistics = joined(_answers(ready, own, batches, total)).gathered()
    return Prediction(posterior.likelihood, *statistics, exact=exact, class_names=posterior.class_names)


def _answers(
    method: PredictiveMethod, model: nn.Module, batches: Iterable[Inputs], total: int | None
) -> list[OutputStatistics]:
    device = next(model.parameters()).device
    bar = track(count(), "predict", total=None if total is None else total * method.steps)

    def advance(steps: int) -> None:
        for _ in range(steps):
            next(bar)

    answers: list[OutputStatistics] = []
    with closing(bar):
        for group in grouped(batches):
            home = next(tensors(group)).device
            answers += [answer.to(home) for answer in method.ask(move(group, device), advance)]
    require(len(answers) > 0, "inputs", "at least one batch", "an empty loader")
    return answers
