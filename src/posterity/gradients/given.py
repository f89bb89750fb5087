"""Given points: the loss where another program has evaluated it."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from posterity.errors import require
from posterity.gradients._points import PointEstimator
from posterity.gradients.curvatures import Curvature, Hessian
from posterity.gradients.gaussian import AnyGaussian


@dataclass(frozen=True)
class AtPoints(PointEstimator):
    """E_q[f] ≈ (1/M) Σ f(θ⁽ᵐ⁾) at M given points, such as the draws of an optimizer that is held to the rule.

    Args:
        theta: The points, (M, d).
        curvature: The estimate of the Hessian; `Stein()` needs gradients only.

    Examples:
        >>> import torch
        >>> from posterity.families import Gaussian
        >>> points = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
        >>> AtPoints(points).expectation(Gaussian.standard(2), lambda theta: theta @ theta).item()
        1.0
    """

    theta: Tensor
    curvature: Curvature = field(default_factory=Hessian)

    def __post_init__(self) -> None:
        require(self.theta.ndim == 2 and len(self.theta) > 0, "theta", "points (M, d)", tuple(self.theta.shape))

    def points(self, q: AnyGaussian) -> tuple[Tensor, Tensor]:
        return self.theta, self.theta.new_full((len(self.theta),), 1.0 / len(self.theta))
