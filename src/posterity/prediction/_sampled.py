"""The sampled predictive: the average over networks drawn from the posterior.

p(y | x) = E_q[p(y | x, θ)] ≈ (1/S) Σ_s p(y | x, θ_s),   θ_s ~ q
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from posterity.inputs import Inputs, attempt
from posterity.prediction._draws import Draws
from posterity.prediction._forward import Runner
from posterity.prediction._question import Advance, PredictiveMethod, Question
from posterity.prediction._running import OutputStatistics, Running


@contextmanager
def sampled(question: Question) -> Iterator[PredictiveMethod]:
    """Predictions from drawn networks; without samples, from the mean weights."""
    model = question.model
    draws = Draws(model, question.posterior, question.samples, question.seed)
    run = Runner(model, draws)

    def forward(inputs: Inputs) -> Tensor:
        return question.arranged(attempt(model, inputs))

    def ask(group: Sequence[Inputs], advance: Advance) -> list[OutputStatistics]:
        running = [Running(question.likelihood, question.keep) for _ in group]
        for position, f in run(forward, group):
            running[position].add(f)
            advance(len(f))
        return [statistics.finish() for statistics in running]

    yield PredictiveMethod(ask, steps=draws.count)
