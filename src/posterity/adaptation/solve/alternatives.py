"""What else could have been done with the same data: retraining, and a plain warm start in the same time."""

from __future__ import annotations

from torch import nn

from posterity.adaptation.problem import AdaptationProblem
from posterity.adaptation.solve.anew import retrained_network
from posterity.adaptation.solve.by_newton import retrained
from posterity.adaptation.solve.training import Settings
from posterity.adaptation.solve.warm_start import Corrected, plain_warm_start
from posterity.errors import PosterityError
from posterity.trees import only_trainable


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
        found["retrained"] = retrained_network(problem, task, Settings(seed=seed))[0]
    except PosterityError as why:
        return found, [f"not retrained for comparison: {why}"]
    return found, []
