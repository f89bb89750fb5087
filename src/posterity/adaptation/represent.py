"""The representation of the old data: the second of the four steps of an adaptation."""

from __future__ import annotations

from posterity.adaptation.past import Past
from posterity.adaptation.penalties.quadratic import gaussian_of
from posterity.adaptation.problem import WARM, AdaptationProblem


def represent(problem: AdaptationProblem) -> Past:
    """The past that a problem is solved with: memory, residual curvature and pull, counted as much as it keeps.

    A warm start has the data themselves: of the past it needs only the memory that it leaves.
    """
    old, posterior, change = problem.old, problem.posterior, problem.change
    memory = problem.memory if problem.recalls else None
    if problem.way == WARM:
        past = Past.remembered_only(old, posterior, memory, change.removed, change.counts)
    elif change.removed is None:
        past = Past.of(old, posterior, memory)
    else:
        lost = change.lost(old, posterior.likelihood, gaussian_of(posterior.structure).names)
        past = Past.left(old, posterior, memory, change.removed, change.counts, lost)
    return past.discounted(problem.keep)
