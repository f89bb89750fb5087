"""Optimizers of `posterity.optim` on the page's losses: how each is made, its equations and its line of code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from posterity.app.rule.choice import Choice
from posterity.families import DiagonalGaussian, FixedGaussian, Gaussian
from posterity.gradients import AnyFamily
from posterity.optim import EVON, IVON, SAM, BayesianSAM, Vadam, Variational

NEXT_TO_NONE = 1e-6  # of a prior, as the loss has one where it needs it
SHARPEST = 1e9  # a precision beyond which q is drawn as a point


@dataclass(frozen=True)
class Mover:
    """An optimizer that moves θ.

    Args:
        make: The optimizer of a parameter.
        equations: Its step.
        code: The line of code, with the settings as named fields.
    """

    make: Callable[[Parameter, Choice], Any]
    equations: tuple[str, ...]
    code: str


def _ess(choice: Choice) -> float:
    """On a total loss, an effective sample size of 1/τ."""
    return 1.0 / max(choice.temperature, 1e-6)


def _betas(choice: Choice) -> tuple[float, float]:
    return (choice.momentum, choice.slow_scale or 0.9)


def _common(choice: Choice) -> dict[str, Any]:
    """What the variational optimizers share: a total loss whose curvature starts at the precision of q."""
    precision = choice.precision or choice.where.precision
    return {
        "lr": choice.lr, "ess": _ess(choice), "hess_init": precision * choice.temperature, "betas": _betas(choice),
        "weight_decay": NEXT_TO_NONE, "seed": choice.seed,
    }  # fmt: skip


def ivon(weight: Parameter, choice: Choice) -> IVON:
    """IVON on a total loss."""
    return IVON([weight], mc_samples=choice.samples, rescale_lr=False, fused=False, **_common(choice))


def _evon(weight: Parameter, choice: Choice) -> EVON:
    settings = _common(choice)
    settings["lr"] /= settings["hess_init"] + NEXT_TO_NONE  # its first steps are those of gradient descent
    return EVON([weight], mc_samples=choice.samples, basis_beta=0.95, refresh=5, **settings)


def _variational(weight: Parameter, choice: Choice) -> Variational:
    adam = torch.optim.Adam([weight], lr=choice.lr, betas=_betas(choice))
    n = len(choice.data)
    return Variational(adam, n=n, total_steps=choice.steps, batch_size=n, seed=choice.seed, fused=False)


_WIDTH = "lr={lr:g}, ess={ess:g}, betas=({momentum:g}, {slow:g})"
MOVERS: dict[str, Mover] = {
    "sam": Mover(
        lambda weight, choice: SAM([weight], lr=choice.lr, rho=choice.radius, momentum=choice.momentum),
        ("e = r ∇ℓ(m)/|∇ℓ(m)|", "m ← m − ρ ∇ℓ(m + e)"),
        "SAM([theta], lr={lr:g}, rho={radius:g}, momentum={momentum:g}).step(closure)",
    ),
    "bsam": Mover(
        lambda weight, choice: BayesianSAM([weight], rho=choice.radius, damping=0.5, **_common(choice)),
        ("e = r ∇ℓ(θ)/s,  θ ~ q", "m ← m − ρ ∇ℓ(m + e)/s", "s ← β₂s + (1 − β₂)(√s |∇ℓ(θ)| + γ)"),
        "BayesianSAM([theta], rho={radius:g}, damping=0.5, " + _WIDTH + ").step(closure)",
    ),
    "ivon": Mover(
        ivon,
        ("ĥ = E[(h + δ)(θ − m) ∇ℓ(θ)]", "h ← β₂h + (1 − β₂)ĥ + ½(1 − β₂)²(h − ĥ)²/h", "m ← m − ρ ∇ℓ(θ)/h"),
        "IVON([theta], " + _WIDTH + ").step(closure)",
    ),
    "evon": Mover(
        _evon,
        ("U: eigenvectors of the average of ∇ℓ(θ) ∇ℓ(θ)ᵀ", "in this basis, the step of IVON", "S = U diag(h) Uᵀ"),
        "EVON([theta], refresh=5, " + _WIDTH + ").step(closure)",
    ),
    "vadam": Mover(
        lambda weight, choice: Vadam([weight], mc_samples=choice.samples, **_common(choice)),
        ("s ← β₂s + (1 − β₂) ∇ℓ(θ)²,  θ ~ q", "m ← m − ρ v̂ / (√ŝ + ε)", "σ² = 1/s"),
        "Vadam([theta], " + _WIDTH + ").step(closure)",
    ),
    "variational": Mover(
        _variational,
        ("θ = m + σε,  σ² = 1/(λ(h + δ))", "m ← Adam(m, ∇ℓ(θ))", "λ: such that the noise adds a set loss"),
        "Variational(Adam([theta], lr={lr:g}), n={n}, total_steps={steps}).step(closure)",
    ),
}


def code(choice: Choice) -> str:
    """The line of code of an optimizer."""
    momentum, slow = _betas(choice)
    return MOVERS[choice.estimator].code.format(
        lr=choice.lr, ess=_ess(choice), momentum=momentum, slow=slow, radius=choice.radius, n=len(choice.data),
        steps=choice.steps,
    )  # fmt: skip


def moved(choice: Choice) -> Iterator[AnyFamily]:
    """q at the start and after each step of an optimizer, which moves a parameter in place."""
    matrix = choice.estimator == "evon"  # only matrices have a basis: θ is one with a single row
    weight = Parameter(choice.theta[None] if matrix else choice.theta)
    optimizer, loss = MOVERS[choice.estimator].make(weight, choice), choice.total()
    share = 1.0 / len(choice.data) if choice.estimator == "variational" else 1.0  # which takes the mean over examples

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = share * loss(weight.reshape(-1))
        value.backward()
        return value

    yield choice.begin()
    for _ in range(choice.steps):
        optimizer.step(closure)
        yield _belief(optimizer, weight)


def _belief(optimizer: Any, weight: Parameter) -> AnyFamily:
    theta = weight.detach().reshape(-1).clone()
    if isinstance(optimizer, SAM):
        return FixedGaussian(theta, torch.eye(len(theta), dtype=torch.float64))
    if isinstance(optimizer, EVON):
        structure: Any = optimizer.structure({"theta": weight})
        return Gaussian(theta, structure.precision_matrix().double())
    precision = optimizer.precision_of(weight, optimizer.param_groups[0]).double()
    return DiagonalGaussian(theta, precision.clamp(max=SHARPEST).reshape(-1))
