"""Variational message passing: the rule with ρ = 1 at one variable after the other."""

from __future__ import annotations

from collections.abc import Mapping

from posterity.errors import require, require_whole
from posterity.families import Family
from posterity.graph._model import Model
from posterity.graph.sweeps import Fit, loop


def vmp(
    model: Model,
    start: Mapping[str, Family] | None = None,
    *,
    lr: float = 1.0,
    steps: int = 1000,
    tolerance: float = 1e-6,
    backtracking: bool = False,
) -> Fit:
    """Variational message passing.

    Posterior: mean field, q = Π_i q_i, each q_i in the family of its prior.

    A factor of a conjugate-exponential model is linear in the expectation parameters of each of its neighbours, so
    that ∇_μ E_q[log f] does not depend on q_i, and the rule with ρ = 1 sets λ_i to a sum of messages:

        λ_i ← λ_i⁰ + Σ_a ∇_{μ_i} E_q[log f_a].

    Each such step maximises the bound over q_i, which therefore never falls. Where a factor is not conjugate the
    same equation is non-conjugate message passing, and ρ < 1 damps it:

        λ_i ← (1 − ρ) λ_i + ρ (λ_i⁰ + Σ_a ∇_{μ_i} E_q[log f_a]).

    Args:
        model: Variables and factors.
        start: Where to begin, for some of the variables; the others begin at their priors.
        lr: ρ.
        steps: Sweeps, at most.
        tolerance: Stop when no entry of a block of λ moves by more than this, relative to the block's largest.
        backtracking: Halve ρ where the bound would fall, and let it grow where it does not: for models with
            non-conjugate factors and estimators without noise.

    References:
        Winn and Bishop, "Variational message passing", 2005. Knowles and Minka, "Non-conjugate variational message
        passing", 2011.
    """
    require_whole("steps", steps)
    require(0.0 < lr <= 1.0, "lr", "a number in (0, 1]", lr)
    return loop(model, model.start(start), lr, steps, tolerance, "passing messages", backtracking)
