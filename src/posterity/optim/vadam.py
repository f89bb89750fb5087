"""Vadam: Adam with weights perturbed by its own scale, the cheapest step from Adam to a posterior."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from posterity.optim._options import GaussianOptions, check_betas, check_eps, floats, number, option
from posterity.optim._terms import delta, pull
from posterity.optim.engine import VariationalOptimizer
from posterity.optim.kernels import Numbers, Views
from posterity.posterior import Diagonal, Posterior
from posterity.trees import state_dtype


@dataclass(frozen=True, kw_only=True)
class VadamOptions(GaussianOptions):
    """The options of a parameter group of Vadam."""

    betas: tuple[float, float] = option(check_betas)
    eps: float = option(check_eps)


class Vadam(VariationalOptimizer):
    """Variational Adam: Adam's steps at weights drawn from N(m, 1/(λ(s + δ))).

        g ← β₁ g + (1 − β₁)(ĝ + δ m),   s ← β₂ s + (1 − β₂) ĝ²
        m ← m − α ĝ₁ / (√ŝ + δ + ε),    ĝ₁ = g/(1 − β₁ᵗ),  ŝ = (s − β₂ᵗ s₀)/(1 − β₂ᵗ)

    The squared gradient of a batch replaces the Hessian, from which it differs: the widths depend on the batch size
    (see the study "Is 1/√s a variance?"). With λ → ∞ and δ = 0 these are Adam's steps.

    Args:
        params: Parameters, named parameters or parameter groups.
        lr: α, as for Adam.
        ess: Effective sample size λ: the number of training examples.
        hess_init: s₀; the first samples have the precision λ(s₀ + δ).
        betas: β₁ and β₂.
        weight_decay: δ; the prior is N(0, 1/(λδ)).
        eps: ε.
        mc_samples: Samples for each `step(closure)`.
        prior: A diagonal Gaussian in place of weight decay; needs named parameters.
        seed: Seed of the noise.
        **torch_options: As for every optimizer here: `foreach` has no effect, `maximize` and others are refused.

    Examples:
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> optimizer = Vadam([weight], ess=100)
        >>> with optimizer.sampled_params(train=True):
        ...     ((weight - 1) ** 2).sum().backward()
        >>> optimizer.step()

    References:
        Khan et al., "Fast and scalable Bayesian deep learning by weight-perturbation in Adam", 2018.
    """

    options = VadamOptions
    widths = ("scale", "prior_precision")
    written = ("momentum", "scale")
    faster = "a smaller second beta"

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        *,
        ess: float,
        hess_init: float = 1e-2,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 1e-4,
        eps: float = 1e-8,
        mc_samples: int = 1,
        prior: Diagonal | Posterior | None = None,
        seed: int = 0,
        **torch_options: Any,
    ) -> None:
        options = VadamOptions(
            lr=lr, ess=ess, hess_init=hess_init, betas=betas, weight_decay=weight_decay, eps=eps, seed=seed
        )
        super().__init__(params, options, mc_samples=mc_samples, prior=prior, torch_options=torch_options)

    def initial_state(self, p: Tensor, options: VadamOptions) -> Views:
        momentum = torch.zeros_like(p, dtype=state_dtype(p.dtype), requires_grad=False)
        scale = torch.full_like(momentum, options.hess_init)
        return {"momentum": momentum, "scale": scale, "forgetting": momentum.new_zeros(())}

    def numbers(self, p: Tensor, options: VadamOptions) -> Numbers:
        (beta1, beta2), t = options.betas, max(self._steps(p), 1)
        return {
            "lr": number(options.lr) / (1 - beta1**t),
            **floats(options, "ess", "hess_init", "weight_decay", "eps"),
            "rho1": 1 - beta1,
            "rho2": 1 - beta2,
            "initial": float(options.hess_init) * beta2**t,  # what is left of s₀
            "debias": 1 / (1 - beta2**t),
        }

    @staticmethod
    def precision(view: Mapping[str, Tensor], numbers: Numbers) -> Tensor | float:
        return (view.get("scale", numbers["hess_init"]) + delta(view, numbers)) * numbers["ess"]

    @staticmethod
    def update(view: Views, mean: Tensor, gradient: Tensor, product: Tensor | None, numbers: Numbers) -> None:
        view["momentum"].lerp_(gradient + pull(view, mean, numbers), numbers["rho1"])
        view["scale"].lerp_(gradient.square(), numbers["rho2"])
        adam = (view["scale"] - numbers["initial"]).clamp_(min=0.0).mul_(numbers["debias"])
        mean.sub_(view["momentum"] / (adam.sqrt_() + delta(view, numbers) + numbers["eps"]) * numbers["lr"])

    def observe(self, p: Tensor, tensors: Views, options: VadamOptions, numbers: Numbers) -> None:
        self.forget(p, numbers["rho2"])
