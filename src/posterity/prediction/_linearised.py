"""The linearised predictive: outputs are Gaussian when the network is replaced by its tangent at the mean.

f(x, θ) ≈ f(x, m) + J(x)(θ − m)   ⟹   f(x) ~ N(f(x, m), V),   V = J Σ Jᵀ
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from posterity.curvature import Covariance, prediction_covariance
from posterity.curvature.covariance import fitted
from posterity.errors import expected, require, require_whole
from posterity.inputs import Inputs, attempt
from posterity.noise import Key, normal
from posterity.prediction._question import Advance, PredictiveMethod, Question
from posterity.prediction._running import OutputStatistics, Running, require_finite
from posterity.trees import state_dtype

ROOM = 2**22  # numbers in the draws that are made at a time


@contextmanager
def linearised(question: Question) -> Iterator[PredictiveMethod]:
    """Closed form for regression; for other likelihoods, averages over draws of the outputs."""
    gaussian = question.likelihood.noise_precision is not None
    require_whole("samples", question.samples, 0 if gaussian else 1)
    covariance = _covariance(question)

    def answer(inputs: Inputs) -> OutputStatistics:
        f, V = _tangent(question, covariance, inputs)
        if gaussian and not question.keep:
            return OutputStatistics(f, V.diagonal(dim1=-2, dim2=-1))
        running = Running(question.likelihood, question.keep)
        for noise in _noise(question, V):
            running.add(f + noise)
        statistics = running.finish()
        return statistics._replace(mean=f, spread=V.diagonal(dim1=-2, dim2=-1)) if gaussian else statistics

    yield one_by_one(answer)


@contextmanager
def probit(question: Question) -> Iterator[PredictiveMethod]:
    """Class probabilities without draws: E[σ(f)] ≈ σ(f / √(1 + πv/8)), for each class with its own variance v.

    References:
        MacKay, "The evidence framework applied to classification networks", 1992.
    """
    if not question.likelihood.is_classification:
        raise expected("method 'probit'", "a bernoulli or categorical likelihood", question.likelihood.name)
    covariance = _covariance(question)

    def answer(inputs: Inputs) -> OutputStatistics:
        f, V = _tangent(question, covariance, inputs)
        moderated = f / (1 + math.pi / 8 * V.diagonal(dim1=-2, dim2=-1)).sqrt()
        return OutputStatistics(question.likelihood.mean(moderated), None, question.likelihood.log_probs(moderated))

    yield one_by_one(answer)


def one_by_one(answer: Callable[[Inputs], OutputStatistics]) -> PredictiveMethod:
    """A method that predicts one batch after the other."""

    def ask(group: Sequence[Inputs], advance: Advance) -> list[OutputStatistics]:
        answers = []
        for inputs in group:
            answers.append(answer(inputs))
            advance(1)
        return answers

    return PredictiveMethod(ask, steps=1)


def _covariance(question: Question) -> Covariance:
    return fitted(question.posterior.covariance(), dict(question.model.named_parameters()))


def _tangent(question: Question, covariance: Covariance, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Mean (B, ..., K) and covariance (B, ..., K, K) of the outputs."""
    f = question.arranged(attempt(question.model, inputs))
    require(f.ndim > 1, "model outputs", "(batch, ..., outputs) for a linearised prediction", tuple(f.shape))
    require_finite(f)
    f = f.to(state_dtype(f.dtype))
    V = prediction_covariance(question.model, inputs, covariance, class_axis=question.axis).to(f.dtype)
    return f, V / question.output_temperature**2


def _noise(question: Question, V: Tensor) -> Iterator[Tensor]:
    """Draws (S, B, ..., K) of N(0, V), in pairs ±, as many at a time as have room.

    All examples and positions share the standard normals, and the symmetric root V^½ depends smoothly on V: like a
    drawn network, a draw varies smoothly over inputs and does not depend on how they are batched. Pairs do not move the
    mean.
    """
    values, vectors = torch.linalg.eigh(V)
    root = (vectors * values.clamp_min(0.0).sqrt().unsqueeze(-2)) @ vectors.mT  # V may be singular: no Cholesky factor
    pairs = [
        normal(Key(question.seed, 0, k), V.shape[-1], device=V.device, dtype=V.dtype)
        for k in range((question.samples + 1) // 2)
    ]
    both = torch.stack([sign * noise for noise in pairs for sign in (1.0, -1.0)])[: question.samples]
    for some in both.split(max(1, ROOM // V[..., 0].numel())):
        yield torch.einsum("...kl,sl->s...k", root, some)
