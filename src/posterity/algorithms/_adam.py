"""Adam: RMSprop with momentum and debiasing."""

from posterity.algorithms._base import Algorithm
from posterity.algorithms._rmsprop import rmsprop
from posterity.families import DiagonalGaussian


def adam(
    lr: float = 0.001, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
) -> Algorithm[DiagonalGaussian]:
    """Adam.

    Posterior: q = N(m, diag(s)⁻¹), which starts without any precision.

    RMSprop (delta method, squared gradients, slow scale, square root) with two more: heavy-ball momentum in the
    natural parameter of the mean, v ← β₁v + ĝ, and debiasing, which divides each running sum by the sum of its
    weights, so that v̂ and ŝ are averages from the first step on:

        v̂ = Σ β₁ᵏ ĝ_{t−k} / Σ β₁ᵏ,   ŝ = Σ β₂ᵏ ĝ²_{t−k} / Σ β₂ᵏ,   m ← m − ρ v̂ / (√ŝ + ε).

    Args:
        lr: ρ, of the mean.
        betas: β₁ of the momentum and β₂ of the scale.
        eps: ε.
    """
    return rmsprop(lr, betas[1], eps).but(momentum=betas[0], debias=True)
