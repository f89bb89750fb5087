"""IVON, the improved variational online Newton method: a diagonal Gaussian posterior at the cost of Adam."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from posterity.errors import InvalidInput, expected, require
from posterity.optim._variational import Group, VariationalOptimizer, Views
from posterity.posterior import Diagonal, Posterior
from posterity.trees import state_dtype


class IVON(VariationalOptimizer):
    """Improved variational online Newton (IVON).

    The posterior is N(m, σ²) with σ² = 1/(λ(h + δ)), where λ is `ess` and δ is `weight_decay`. From the gradient ĝ of
    the mean loss at θ = m + σε, in this order:

        ĥ = λ (h + δ) (θ − m) ĝ
        g ← β₁ g + (1 − β₁) ĝ
        h ← β₂ h + (1 − β₂) ĥ + ½ (1 − β₂)² (h − ĥ)² / (h + δ)
        m ← m − α clip( (g / (1 − β₁ᵗ) + δ m) / (h + δ), ξ )

    Args:
        params: Parameters, named parameters or parameter groups.
        lr: Learning rate; α = lr · (hess_init + δ) with `rescale_lr`, so that the first steps are those of SGD.
        ess: Effective sample size λ: the number of training examples, or more for a colder posterior.
        hess_init: Initial value of h.
        betas: β₁ and β₂.
        weight_decay: δ; the prior is N(0, 1/(λδ)).
        mc_samples: Samples for each `step(closure)`.
        clip_radius: ξ, bound on every component of the preconditioned direction.
        debias: Whether the momentum is divided by 1 − β₁ᵗ.
        rescale_lr: Whether lr is multiplied by hess_init + δ.
        hess_approx: "price" for ĥ as above.
        prior: A diagonal Gaussian in place of weight decay; needs named parameters.
        seed: Seed of the noise; the same on every process.

    References:
        Shen et al., "Variational learning is effective for large deep networks", 2024.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor,
        ess: float,
        hess_init: float = 1.0,
        betas: tuple[float, float] = (0.9, 0.99999),
        weight_decay: float = 1e-4,
        mc_samples: int = 1,
        clip_radius: float = math.inf,
        debias: bool = True,
        rescale_lr: bool = True,
        hess_approx: str = "price",
        prior: Diagonal | Posterior | None = None,
        seed: int = 0,
    ) -> None:
        defaults = {
            "lr": lr,
            "ess": ess,
            "hess_init": hess_init,
            "betas": betas,
            "weight_decay": weight_decay,
            "clip_radius": clip_radius,
            "debias": debias,
            "rescale_lr": rescale_lr,
            "hess_approx": hess_approx,
            "seed": seed,
        }
        super().__init__(params, defaults, mc_samples=mc_samples, prior=prior)

    def add_param_group(self, param_group: Group) -> None:
        _check({**self.defaults, **param_group})
        super().add_param_group(param_group)

    def _initial_state(self, p: Tensor, group: Group) -> Views:
        momentum = torch.zeros_like(p, dtype=state_dtype(p.dtype), requires_grad=False)
        return {"momentum": momentum, "hessian": torch.full_like(momentum, group["hess_init"])}

    def _precision(self, state: Mapping[str, Tensor], group: Group) -> Tensor:
        hessian = state["hessian"] if "hessian" in state else torch.tensor(float(group["hess_init"]))
        return (hessian + _delta(state, group)) * group["ess"]

    def _update(
        self, mean: Tensor, gradient: Tensor, product: Tensor | None, state: Views, group: Group, step: int
    ) -> None:
        beta1, beta2 = group["betas"]
        delta, hessian = _delta(state, group), state["hessian"]
        momentum = state["momentum"].lerp_(gradient, 1 - beta1)
        if product is not None:
            precision = hessian + delta
            estimate = group["ess"] * precision * product
            change = (1 - beta2) * (estimate - hessian) / precision
            hessian.add_(precision * change * (1 + 0.5 * change))
        bias = 1 - beta1**step if group["debias"] else 1.0
        pull = mean - state["prior_mean"] if "prior_mean" in state else mean
        direction = (momentum / bias + delta * pull) / (hessian + delta)
        if group["clip_radius"] < math.inf:
            direction.clamp_(-group["clip_radius"], group["clip_radius"])
        scale = group["hess_init"] + group["weight_decay"] if group["rescale_lr"] else 1.0
        mean.sub_(direction * (group["lr"] * scale))


def _delta(state: Mapping[str, Tensor], group: Group) -> Tensor | float:
    """δ, the precision of the prior in units of ess."""
    return state["prior_precision"] / group["ess"] if "prior_precision" in state else group["weight_decay"]


def _check(group: Group) -> None:
    lr = group["lr"]
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise InvalidInput(f"Tensor lr must be 1-element, got shape {tuple(lr.shape)}")
    require(bool(0 <= lr < math.inf), "Invalid learning rate", "a number >= 0", lr)
    for name in ("ess", "hess_init"):
        require(0 < group[name] < math.inf, name, "a positive finite number", group[name])
    for i, beta in enumerate(group["betas"]):
        require(0 <= beta < 1, f"Invalid beta parameter at index {i}", "a number in [0, 1)", beta)
    require(0 <= group["weight_decay"] < math.inf, "Invalid weight_decay value", "a number >= 0", group["weight_decay"])
    require(group["clip_radius"] > 0, "clip_radius", "a positive number", group["clip_radius"])
    if group["hess_approx"] not in ("price",):
        raise expected("hess_approx", "'price'", group["hess_approx"])
