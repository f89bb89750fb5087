"""AdamW: Adam with decoupled weight decay."""

from posterity.algorithms._adam import adam
from posterity.algorithms._base import Algorithm
from posterity.families import DiagonalGaussian


def adamw(
    lr: float = 0.001,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.01,
) -> Algorithm[DiagonalGaussian]:
    """AdamW.

    Posterior: q = N(m, diag(s)⁻¹), which starts without any precision.

    Adam for the data, while the Gaussian prior N(0, 1/δ) acts on the mean alone and unscaled (decoupled):

        m ← (1 − ρδ) m − ρ v̂ / (√ŝ + ε).

    Args:
        lr: ρ, of the mean.
        betas: β₁ of the momentum and β₂ of the scale.
        eps: ε.
        weight_decay: δ.
    """
    return adam(lr, betas, eps).but(decay=weight_decay)
