"""Expectation maximisation: message passing with the delta method at the parameters."""

from __future__ import annotations

from collections.abc import Mapping

from posterity.errors import require_whole
from posterity.families import Family
from posterity.graph._model import Model
from posterity.graph.sweeps import Fit, loop


def em(model: Model, start: Mapping[str, Family] | None = None, *, steps: int = 1000, tolerance: float = 1e-6) -> Fit:
    """Expectation maximisation.

    Posterior: exact for the hidden variables, a point for each parameter.

    As variational message passing, with one approximation: the delta method at the mode θ* of q(θ) ∝ exp⟨λ, T(θ)⟩.

        E-step:  q(z) = p(z | x, θ*)
        M-step:  λ ← λ⁰ + Σ_n E_q(z)[t(x_n, z_n)],   θ* = argmax ⟨λ, T(θ)⟩,   E_q[T(θ)] ≈ T(θ*).

    Without priors (λ⁰ = 0) θ* is the parameter of maximum likelihood, and the bound is the log-likelihood.

    Args:
        model: Variables and factors; all shared variables are the parameters.
        start: The parameters to begin with, as the modes of these members.
        steps: Iterations, at most.
        tolerance: As in `vmp`.

    References:
        Dempster, Laird and Rubin, "Maximum likelihood from incomplete data via the EM algorithm", 1977.
    """
    require_whole("steps", steps)
    return loop(model, model.start(start, point=True), 1.0, steps, tolerance, "expectation maximisation")
