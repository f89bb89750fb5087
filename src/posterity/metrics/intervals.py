"""Student's t distribution, for intervals around the mean of a few measurements."""

from __future__ import annotations

import math

import numpy as np

from posterity.errors import require, require_whole


def student_quantile(probability: float, degrees: int) -> float:
    """The quantile of Student's t distribution.

    With T = √ν tan φ its distribution function is an integral over a smooth function of the angle,

        P(0 ≤ T ≤ x) = C ∫₀^atan(x/√ν) cos^(ν−1) φ dφ,   C = Γ((ν + 1)/2) / (√π Γ(ν/2)),

    which Gauss-Legendre quadrature computes to the last digits; the quantile is found by bisection of the angle.

    Args:
        probability: A number in (0, 1).
        degrees: Degrees of freedom ν.

    Examples:
        >>> round(student_quantile(0.975, 4), 4)
        2.7764
    """
    require(0.0 < probability < 1.0, "probability", "a number in (0, 1)", probability)
    require_whole("degrees", degrees)
    nodes, weights = np.polynomial.legendre.leggauss(128)
    constant = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(math.pi)
    wanted, low, high = abs(probability - 0.5), 0.0, math.pi / 2
    for _ in range(60):
        angle = (low + high) / 2
        inside = constant * angle / 2 * float(weights @ np.cos(angle / 2 * (nodes + 1)) ** (degrees - 1))
        low, high = (angle, high) if inside < wanted else (low, angle)
    return math.copysign(math.sqrt(degrees) * math.tan((low + high) / 2), probability - 0.5)
