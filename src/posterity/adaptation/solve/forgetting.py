"""How much of the past to forget when new data come: a discount that the new data themselves choose.

    (1 − γ) Σ_past ℓ + Σ_new ℓ − log p(θ)

γ = 0 keeps everything. γ = 1 leaves the prior, and nothing of a network that no prior has pulled. For linear models the
evidence of the new data decides,

    log p(D_new | γ) ≈ V_γ(∅) − V_γ(D_new) + ½ log |H_γ(∅)| − ½ log |H_γ(D_new)|

with V the minimum of the discounted objective without and with the new data, and H the Hessian there. For networks it
is the predictive likelihood of the new data under the discounted posterior. They forget everything, which cannot be
taken back, only where the data have clearly changed.
"""

from __future__ import annotations

from numbers import Real

import torch

from posterity.adaptation.problem import AdaptationProblem
from posterity.adaptation.represent import represent
from posterity.adaptation.solve.by_newton import convex_problem
from posterity.adaptation.solve.drift import CLEAR, Drift
from posterity.adaptation.solve.newton import minimise
from posterity.errors import PosterityError, expected, require
from posterity.learning.starts import reinitialised
from posterity.prediction import predict

RATES = (0.0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95, 1.0)


def checked(forget: float | str) -> float | str:
    """A discount in [0, 1], or "auto"."""
    if forget == "auto":
        return "auto"
    if not isinstance(forget, Real) or isinstance(forget, bool) or not 0 <= forget <= 1:
        raise expected("forget", "a number in [0, 1] or 'auto'", forget)
    return float(forget)


def drift_of(problem: AdaptationProblem, forget: float | str) -> Drift:
    """The discount to use: the one that was given, or the one under which the new data are most likely."""
    if isinstance(forget, float):
        new = problem.change.added is not None
        require(forget < 1 or new, "forget", "new data (`add`) where all is forgotten", forget)
        return Drift(forget, {})
    require(problem.change.added is not None, "forget", "new data (`add`), for 'auto' to compare with the past", "none")
    score = _evidence if problem.heads is not None else _predictive
    found = {rate: score(problem, rate) for rate in RATES if rate < 1 or _can_start_anew(problem)}
    best = max(found, key=lambda rate: found[rate])
    if best == 1 and problem.heads is None and found[1.0] - found[0.0] <= CLEAR:
        best = max((rate for rate in found if rate < 1), key=lambda rate: found[rate])
    return Drift(best, {rate: value - found[best] for rate, value in found.items()})


def _can_start_anew(problem: AdaptationProblem) -> bool:
    """Whether nothing of the past has to be left: a network needs new weights for that."""
    try:
        return problem.heads is not None or reinitialised(problem.new, 0, 1) is not None
    except PosterityError:
        return False


def _evidence(problem: AdaptationProblem, rate: float) -> float:
    """Log-evidence of the new data, by Laplace's approximation."""
    values, past = [], represent(problem)
    for new in (False, True):
        convex, start, _ = convex_problem(problem, past.discounted(1 - rate), new)
        solution = minimise(convex, start)
        values.append(convex.value(solution.theta).item() + 0.5 * torch.logdet(solution.hessian).item())
    return values[0] - values[1]


def _predictive(problem: AdaptationProblem, rate: float) -> float:
    """Log-likelihood of the new data under the discounted posterior, before they are learnt."""
    added, posterior = problem.change.added, problem.posterior
    assert added is not None
    if problem.change.classes is not None:
        raise expected("forget", "a number in [0, 1], where classes are new", "auto")
    discounted = posterior.discounted(rate)
    prediction = predict(problem.old, discounted, added.inputs, 32)
    return prediction.log_prob(added.targets).sum().item()
