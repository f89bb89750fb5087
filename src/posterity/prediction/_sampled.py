"""The sampled predictive: the average over networks drawn from the posterior.

p(y | x) = E_q[p(y | x, θ)] ≈ (1/S) Σ_s p(y | x, θ_s),   θ_s ~ q
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor
from torch.func import functional_call

from posterity.batches import Inputs, call
from posterity.prediction._draws import Draws
from posterity.prediction._forward import Sampler
from posterity.prediction._question import Ask, Question
from posterity.prediction._running import Running, Statistics
from posterity.trees import Tree


@contextmanager
def sampled(question: Question) -> Iterator[Ask]:
    """Answers from drawn networks (from the mean weights, without samples); weights never enter the model itself."""
    model = question.model
    draws = Draws(model, question.posterior, question.samples, question.seed)
    sampler = Sampler(model, draws)

    def ask(inputs: Inputs, start: int) -> Statistics:
        def forward(drawn: Tree) -> Tensor:
            weights = draws.fixed | drawn
            return question.arranged(call(lambda *args, **named: functional_call(model, weights, args, named), inputs))

        running = Running(question.likelihood, question.keep)
        for numbers, block in draws.blocks():
            for f in sampler.outputs(forward, numbers, block, inputs):
                running.add(f)
        return running.finish()

    yield ask
