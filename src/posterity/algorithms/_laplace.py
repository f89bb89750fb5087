"""Laplace's approximation: Newton's method, run to the end."""

from torch import Tensor

from posterity.algorithms._newton import newton
from posterity.families import Gaussian
from posterity.gradients import AnyLoss


def laplace(theta: Tensor, loss: AnyLoss, steps: int = 100, tolerance: float = 1e-12) -> Gaussian:
    """Laplace's approximation.

    Posterior: q = N(m, S⁻¹) with a full precision.

    With the delta method a fixed point of the rule has E_q[∇ℓ] ≈ ∇ℓ(m*) = 0 and S = E_q[∇²ℓ] ≈ ∇²ℓ(m*), which is
    Laplace's approximation at the mode m*. Newton's method (ρ = 1) finds it:

        ∇ℓ(m*) = 0,   S = ∇²ℓ(m*).

    Args:
        theta: Where to start.
        loss: The total loss, prior included.
        steps: Newton steps, at most.
        tolerance: When to stop, as in `BayesianLearningRule.run`.
    """
    return newton().run(theta, loss, steps, tolerance=tolerance)
