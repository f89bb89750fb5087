"""VOGN: OGN without the delta method."""

import torch

from posterity.algorithms._base import Algorithm
from posterity.algorithms._ogn import ogn
from posterity.families import DiagonalGaussian
from posterity.gradients import MonteCarlo, SquaredGradients


def vogn(
    lr: float = 0.1, precision: float = 1.0, samples: int = 1, generator: torch.Generator | None = None
) -> Algorithm[DiagonalGaussian]:
    """VOGN, variational online Gauss-Newton.

    Posterior: q = N(m, diag(s)⁻¹).

    OGN without the delta method: the gradients are taken at samples θ ~ q,

        s ← (1 − ρ)s + ρ(E_q[Σᵢ gᵢ²] + δ),   m ← m − ρ E_q[∇ℓ] / s.

    Args:
        lr: ρ.
        precision: s at the start.
        samples: Number of samples for E_q.
        generator: Source of randomness; torch's own when left out.
    """
    return ogn(lr, precision).but(gradient=MonteCarlo(samples, SquaredGradients(per_example=True), generator))
