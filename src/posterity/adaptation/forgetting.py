"""How much of the past to forget when new data come: a discount that the new data themselves choose.

    (1 − γ) Σ_past ℓ + Σ_new ℓ − log p(θ)

γ = 0 keeps everything, γ = 1 leaves the prior. For linear models the evidence of the new data decides,

    log p(D_new | γ) ≈ V_γ(∅) − V_γ(D_new) + ½ log |H_γ(∅)| − ½ log |H_γ(D_new)|

with V the minimum of the discounted objective without and with the new data, and H the Hessian there. For networks it
is the predictive likelihood of the new data under the discounted posterior.
"""

from __future__ import annotations

from numbers import Real

import torch

from posterity.adaptation.by_newton import problem_of
from posterity.adaptation.drift import Drift
from posterity.adaptation.newton import minimise
from posterity.adaptation.situation import Situation
from posterity.errors import expected, require
from posterity.prediction import predict

RATES = (0.0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95, 1.0)


def checked(forget: float | str) -> float | str:
    """A discount in [0, 1], or "auto"."""
    if forget == "auto":
        return "auto"
    if not isinstance(forget, Real) or isinstance(forget, bool) or not 0 <= forget <= 1:
        raise expected("forget", "a number in [0, 1] or 'auto'", forget)
    return float(forget)


def drift_of(situation: Situation, forget: float | str) -> Drift:
    """The discount to use: the one that was given, or the one under which the new data are most likely."""
    if isinstance(forget, float):
        return Drift(forget, {})
    require(
        situation.change.added is not None, "forget", "new data (`add`), for 'auto' to compare with the past", "none"
    )
    score = _evidence if situation.heads is not None else _predictive
    found = {rate: score(situation, rate) for rate in RATES}
    best = max(found, key=lambda rate: found[rate])
    return Drift(best, {rate: value - found[best] for rate, value in found.items()})


def _evidence(situation: Situation, rate: float) -> float:
    """Log-evidence of the new data, by Laplace's approximation."""
    values = []
    for new in (False, True):
        problem, start, _ = problem_of(situation, situation.past.discounted(1 - rate), new)
        solution = minimise(problem, start)
        values.append(problem.value(solution.theta).item() + 0.5 * torch.logdet(solution.hessian).item())
    return values[0] - values[1]


def _predictive(situation: Situation, rate: float) -> float:
    """Log-likelihood of the new data under the discounted posterior, before they are learnt."""
    added, posterior = situation.change.added, situation.posterior
    assert added is not None
    if situation.change.classes is not None:
        raise expected("forget", "a number in [0, 1], where classes are new", "auto")
    discounted = posterior.discounted(rate)
    prediction = predict(situation.old, discounted, added.inputs, 32)
    return prediction.log_prob(added.targets).sum().item()
