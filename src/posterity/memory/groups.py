"""The memory-perturbation equation for groups, in the space of the weights, with all cross terms.

    Δθ = (Σ⁻¹ − G)⁻¹ g,    g = Σ_i J_iᵀ(e_i − w_i e′_i),    G = Σ_i (1 − w_i) J_iᵀΛ_iJ_i

One backward pass of the group's residuals gives g. To first order Δθ = Σ g. Deflated, the system is solved by
conjugate gradients preconditioned with Σ, each step a tangent and a backward pass over the group: no matrix between
examples is ever formed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from posterity.curvature import pullback, pushforward
from posterity.inputs import Inputs
from posterity.posterior import FittedModel
from posterity.trees import Tree, from_vector, to_vector

STEPS = 500


@dataclass(frozen=True, eq=False)
class Part:
    """Some examples of a group, as one batch.

    Args:
        inputs: Their inputs.
        push: e − w e′ (B, K).
        lost: The curvature that goes, (1 − w)Λ (B, K, K).
        touched: The curvature of what changes at all, Λ also of examples that only get another target (B, K, K).
    """

    inputs: Inputs
    push: Tensor
    lost: Tensor
    touched: Tensor


@dataclass(frozen=True, eq=False)
class Shift:
    """What a group's perturbation does to the weights.

    Args:
        parameters: Δθ.
        leverage: The share of the precision that the group has, ΔθᵀGΔθ / ΔθᵀΣ⁻¹Δθ with the Λ of all its examples, those
            with a new target included; deflated, in whichever direction it is largest if that is more (the largest
            eigenvalue of ΣG, as far as the iterations have seen it).
        converged: Whether the system was solved to precision.
    """

    parameters: Tree
    leverage: float
    converged: bool


def shift(trained: FittedModel, group: list[Part], *, deflate: bool) -> Shift:
    """Δθ of a group, with the model at its posterior mean."""
    covariance, model = trained.covariance, trained.model
    names = covariance.names
    parameters = dict(model.named_parameters())
    like: Tree = {name: parameters[name] for name in names}

    def back(inputs: Inputs, v: Tensor) -> Tensor:
        return to_vector(pullback(model, inputs, v, names))

    def forward(inputs: Inputs, x: Tensor) -> Tensor:
        return pushforward(model, inputs, {name: t.to(like[name].dtype) for name, t in from_vector(x, like).items()})

    def curved(x: Tensor) -> Tensor:
        moved = ((part, (part.lost @ forward(part.inputs, x).to(part.lost).unsqueeze(-1))) for part in group)
        return torch.stack([back(part.inputs, v.squeeze(-1)).to(x) for part, v in moved]).sum(0)

    def touched(x: Tensor) -> float:
        f = ((part, forward(part.inputs, x).to(part.touched).unsqueeze(-1)) for part in group)
        return sum((v.mT @ part.touched @ v).sum().item() for part, v in f)

    def spread(x: Tensor) -> Tensor:
        return to_vector(covariance.times(from_vector(x, like)))

    g = torch.stack([back(part.inputs, part.push) for part in group]).sum(0)
    if not deflate:
        x = spread(g)
        size = (x @ g).item()
        return Shift(from_vector(x, like), touched(x) / size if size > 0 else 0.0, True)
    solution = conjugate_gradients(spread, curved, g)
    x = solution.x
    size = (x @ (g + curved(x))).item()  # Σ⁻¹Δθ = g + GΔθ
    leverage = max(solution.leverage, touched(x) / size if size > 0 else 0.0)
    return Shift(from_vector(x, like), leverage, solution.converged)


@dataclass(frozen=True, eq=False)
class SolvedSystem:
    """x, whether it solves the system, and the largest eigenvalue of ΣG that the iterations have seen."""

    x: Tensor
    converged: bool
    leverage: float


def conjugate_gradients(
    covariance: Callable[[Tensor], Tensor], lost: Callable[[Tensor], Tensor], g: Tensor, steps: int = STEPS
) -> SolvedSystem:
    """Solve (Σ⁻¹ − G) x = g, given products with Σ and with G.

    Preconditioned with Σ, every search direction is Σ times a known vector, so that Σ⁻¹ is never needed. Where
    Σ⁻¹ − G turns out not to be positive (Σ does not contain the group), the first-order solution is returned.

    Args:
        covariance: x ↦ Σ x.
        lost: x ↦ G x.
        g: Right-hand side.
        steps: Largest number of steps.

    Examples:
        >>> sigma, g = torch.tensor([[0.5, 0.1], [0.1, 0.4]]).double(), torch.tensor([1.0, 2.0]).double()
        >>> solution = conjugate_gradients(lambda x: sigma @ x, lambda x: 0.3 * x, g)
        >>> torch.allclose(sigma.inverse() @ solution.x - 0.3 * solution.x, g)
        True
    """
    tolerance = 8 * torch.finfo(g.dtype).eps
    x, r, q = torch.zeros_like(g), g, g
    p = covariance(r)  # = Σ q throughout
    size = first = (r @ p).item()
    lengths: list[float] = []
    ratios: list[float] = []
    while size > tolerance**2 * first and len(lengths) < steps:
        moved = q - lost(p)
        bend = (p @ moved).item()
        if bend <= 0:
            return SolvedSystem(covariance(g), False, math.inf)
        lengths.append(size / bend)
        x, r = x + lengths[-1] * p, r - lengths[-1] * moved
        z = covariance(r)
        size, last = (r @ z).item(), size
        ratios.append(size / last)
        p, q = z + ratios[-1] * p, r + ratios[-1] * q
    return SolvedSystem(x, size <= tolerance**2 * first, 1 - _smallest_eigenvalue(lengths, ratios))


def _smallest_eigenvalue(lengths: list[float], ratios: list[float]) -> float:
    """The smallest Ritz value of I − ΣG: step lengths and ratios of conjugate gradients are a Lanczos tridiagonal."""
    if not lengths:
        return 1.0
    a, b = torch.tensor(lengths, dtype=torch.float64), torch.tensor(ratios, dtype=torch.float64)
    diagonal = 1 / a
    diagonal[1:] += b[:-1] / a[:-1]
    beside = (b.sqrt() / a)[:-1]
    return torch.linalg.eigvalsh(diagonal.diag() + beside.diag(1) + beside.diag(-1))[0].item()
