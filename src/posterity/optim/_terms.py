"""What the prior and an extra term add to gradient and Hessian of a block of weights, in units of ess or N."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from posterity.optim.kernels import Numbers, Views


def delta(view: Mapping[str, Tensor], numbers: Numbers) -> Tensor | float:
    """δ, the precision of the prior."""
    return view["prior_precision"] / size(numbers) if "prior_precision" in view else numbers["delta"]


def size(numbers: Numbers) -> Tensor | float:
    """What priors and terms are divided by: λ, or N where λ moves and they must not."""
    return numbers["n"] if "n" in numbers else numbers["ess"]


def pull(view: Views, mean: Tensor, numbers: Numbers) -> Tensor:
    """δ (m − m₀) + (quadratic · m − linear) / λ, the gradient of prior and extra term at the mean."""
    force = (mean - view["prior_mean"] if "prior_mean" in view else mean) * delta(view, numbers)
    if "linear" in view:
        force = force.add_((view["quadratic"] * mean).sub_(view["linear"]).div_(size(numbers)))
    return force
