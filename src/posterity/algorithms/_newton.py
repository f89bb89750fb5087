"""Newton's method: a full Gaussian, the delta method and a step of one."""

from posterity.algorithms._base import Algorithm, unit
from posterity.families import Gaussian
from posterity.gradients import Delta
from posterity.rule import BayesianLearningRule


def newton(lr: float = 1.0) -> Algorithm[Gaussian]:
    """Newton's method.

    Posterior: q = N(m, S⁻¹) with a full precision.

    For Gaussians the rule reads S ← (1 − ρ)S + ρE_q[∇²ℓ], m ← m − ρS⁻¹E_q[∇ℓ]. The delta method evaluates both
    expectations at the mean, and ρ = 1 forgets the old precision:

        S ← ∇²ℓ(m),   m ← m − S⁻¹ ∇ℓ(m).

    Args:
        lr: ρ; below 1 the Hessian is averaged over the steps.
    """
    return Algorithm(unit, BayesianLearningRule(Delta(), lr=lr))
