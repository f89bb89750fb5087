"""Monte Carlo: expectations under a Gaussian q as averages over a sample."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from posterity.errors import require_whole
from posterity.gradients._points import PointEstimator
from posterity.gradients.curvatures import Curvature, Hessian
from posterity.gradients.gaussian import AnyGaussian


@dataclass(frozen=True)
class MonteCarlo(PointEstimator):
    """E_q[f] ≈ (1/M) Σ f(θ⁽ᵐ⁾), θ⁽ᵐ⁾ ~ q: unbiased, with an error of order 1/√M.

    Args:
        samples: M.
        curvature: The estimate of the Hessian; `Stein()` needs gradients only.
        generator: Source of randomness; torch's own when left out.
    """

    samples: int = 1
    curvature: Curvature = field(default_factory=Hessian)
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        require_whole("samples", self.samples)

    def points(self, q: AnyGaussian) -> tuple[Tensor, Tensor]:
        return q.sample(self.samples, self.generator), q.mean.new_full((self.samples,), 1.0 / self.samples)
