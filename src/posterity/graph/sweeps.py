"""The engine: one sweep of the rule over all variables of a model, and the loop around it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from posterity.errors import InvalidInput
from posterity.families import Coordinates, Family
from posterity.gradients import Conjugate, ConjugateLoss
from posterity.graph._factor import Belief
from posterity.graph._model import Model
from posterity.graph.evaluated import Evaluated
from posterity.graph.modes import PointMass
from posterity.progress import track
from posterity.rule import BayesianLearningRule, relative_change

_SMALLEST = 1e-6  # ρ below which a bound that still falls is rounding


@dataclass(frozen=True)
class Fit:
    """The result of inference.

    Attributes:
        q: The posterior of every variable: a `Family`, or a `PointMass` at a mode after EM.
        bounds: The evidence bound before the first sweep and after each.
        steps: Sweeps taken.
        converged: Whether λ came to rest within the tolerance.
    """

    q: Mapping[str, Any]
    bounds: list[float]
    steps: int
    converged: bool


def moved(belief: Belief, message: Coordinates, lr: float) -> Belief:
    """λ ← (1 − ρ)λ + ρ · message: the rule, for a loss that is linear in μ.

    With ρ = 1 that is the message itself, without the rounding of λ − (λ − message).
    """
    family = belief.family if isinstance(belief, PointMass) else belief
    if lr == 1.0:
        family = family.with_natural(message)
    else:
        family = BayesianLearningRule(Conjugate(), lr=lr).step(family, ConjugateLoss(message))
    return PointMass(family) if isinstance(belief, PointMass) else family


def sweep(known: Evaluated, q: dict[str, Belief], lr: float, weight: float = 1.0) -> tuple[dict[str, Belief], float]:
    """Move every shared variable, group by group.

    Args:
        known: The model and what is known of its factors.
        q: The beliefs.
        lr: ρ.
        weight: N/B, how many rows each given row represents.

    Returns:
        The new beliefs, and the largest relative change of λ.
    """
    change = 0.0
    for group in known.model.groups():
        new = {name: moved(q[name], known.message(name, q, weight), lr) for name in group}
        change = max(change, *(relative_change(q[name].natural, new[name].natural) for name in group))
        q = q | new
    return q, change


def settle(
    known: Evaluated, q: dict[str, Belief], steps: int, tolerance: float = 0.0
) -> tuple[dict[str, Belief], float]:
    """Move the local variables with ρ = 1, again and again until they rest."""
    change = 0.0
    for _ in range(steps if known.model.local else 0):
        new = {name: moved(q[name], known.message(name, q), 1.0) for name in known.model.local}
        change = max(relative_change(q[name].natural, new[name].natural) for name in new)
        q = q | new
        if change <= tolerance:
            break
    return q, change


def loop(
    model: Model,
    q: dict[str, Belief],
    lr: float,
    steps: int,
    tolerance: float,
    label: str,
    backtracking: bool = False,
) -> Fit:
    """Sweeps until λ rests; a warning where the steps run out first."""
    known, change = Evaluated(model), math.inf
    bounds = [known.bound(q).item()]
    for _ in track(range(steps), label, total=steps, note=lambda: f"bound {bounds[-1]:.6g}"):
        q, of_local = settle(known, q, 1)
        if backtracking:
            q, change, lr = _backtracked(known, q, lr)
        else:
            q, change = sweep(known, q, lr)
        change = max(change, of_local)
        bounds.append(known.bound(q).item())
        if change <= tolerance:
            break
    if change > tolerance > 0.0:
        message = f"λ still moves by {change:.2g} after {len(bounds) - 1} sweeps (tolerance {tolerance:.2g})"
        warnings.warn(message, RuntimeWarning, stacklevel=3)
    return Fit(q, bounds, len(bounds) - 1, change <= tolerance)


def _backtracked(known: Evaluated, q: dict[str, Belief], lr: float) -> tuple[dict[str, Belief], float, float]:
    """A sweep with the largest ρ, halved from the last, under which the bound does not fall; then ρ may grow again.

    Returns:
        The beliefs, the change that ρ = 1 would have made, and the ρ to begin with next time.
    """
    bound = known.bound(q).item()
    while True:
        try:
            new, change = sweep(known, q, lr)
            fine = known.bound(new).item() >= bound - 1e-10 * (1.0 + abs(bound))
        except InvalidInput:
            fine = False
        if fine:
            return new, change / lr, min(1.0, 2.0 * lr)
        if lr < _SMALLEST:
            return q, 0.0, lr
        lr = 0.5 * lr


def families(q: Mapping[str, Belief]) -> dict[str, Family]:
    """The beliefs as members of their families, points included."""
    return {name: belief.family if isinstance(belief, PointMass) else belief for name, belief in q.items()}
