"""The way that fits a problem: the third of the four steps of an adaptation."""

from __future__ import annotations

from posterity.adaptation.past import Past
from posterity.adaptation.problem import ANEW, WARM, AdaptationProblem, Solved
from posterity.adaptation.solve.anew import anew
from posterity.adaptation.solve.by_descent import by_descent
from posterity.adaptation.solve.by_newton import by_newton
from posterity.adaptation.solve.training import Settings
from posterity.adaptation.solve.warm_start import warm_start


def solve(problem: AdaptationProblem, past: Past, settings: Settings) -> Solved:
    """The adapted model, in the way that was resolved."""
    if problem.heads is not None:
        return by_newton(problem, past)
    if problem.way == ANEW:
        return anew(problem, past, settings)
    if problem.way == WARM:
        return warm_start(problem, past, settings)
    return by_descent(problem, past, settings)
