"""What else could have been done with the same data: retraining, and a plain warm start in the same time."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from posterity.adaptation.problem import AdaptationProblem
from posterity.adaptation.solve.by_newton import retrained
from posterity.adaptation.solve.warm_start import BATCH, LARGE_RATE, Corrected, Schedule, descend, plain_warm_start
from posterity.errors import PosterityError
from posterity.learning.starts import reinitialised
from posterity.trees import only_trainable

EPOCHS, STEPS = 20, 2000  # of retraining, whichever is more: what `fit` takes unless told otherwise


def alternatives(problem: AdaptationProblem, seconds: float, seed: int) -> tuple[dict[str, nn.Module], list[str]]:
    """Other models for the present data, by name, and notes about those that could not be trained.

    Args:
        problem: What was adapted; all data are given.
        seconds: Processor time that the adaptation took.
        seed: Of everything random.
    """
    whole = problem.all_data()
    assert whole is not None
    if problem.heads is not None:
        return {"retrained": retrained(problem, whole)}, []
    task = Corrected.of(problem)
    found = {}
    if not problem.other_model():
        start = problem.before()
        with only_trainable(start, problem.prior.names):
            found["plain warm start"] = plain_warm_start(start, task, seconds, seed)
    try:
        new = reinitialised(problem.new, seed, 1)
    except PosterityError as why:
        return found, [f"not retrained for comparison: {why}"]
    steps = max(STEPS, EPOCHS * -(-len(whole) // BATCH))
    with only_trainable(new, problem.prior.names):
        descend(new, replace(task, changed=0), Schedule(steps, LARGE_RATE, BATCH), seed)
    return found | {"retrained": new}, []
