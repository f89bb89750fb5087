"""bSAM: SAM as the relaxation of Bayes that it is, with a posterior whose width it learns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from posterity.optim._options import GaussianOptions, check_betas, floats, in_range, number, option
from posterity.optim._terms import delta, pull
from posterity.optim._two_pass import TwoPass
from posterity.optim.kernels import Numbers, Views
from posterity.posterior import Diagonal, Posterior
from posterity.trees import state_dtype


@dataclass(frozen=True, kw_only=True)
class BayesianSAMOptions(GaussianOptions):
    """The options of a parameter group of bSAM."""

    rho: float = in_range("rho", "a number >= 0")
    betas: tuple[float, float] = option(check_betas)
    damping: float = in_range("damping", "a number >= 0")


class BayesianSAM(TwoPass):
    """Bayesian SAM: N(m, 1/(λs)), by sharpness-aware steps whose neighbourhood follows the posterior.

        e = ρ g/s,  g the gradient at θ = m + ε/√(λs)            (each weight has its own distance: no norm)
        g₁ ← β₁ g₁ + (1 − β₁)(∇ℓ(m + e) + δ m)
        m ← m − α g₁/s,  with the old s
        s ← β₂ s + (1 − β₂)(√s |g| + γ + δ)

    Two passes a step; see `TwoPass`, also for m-sharpness and mixed precision.

    Args:
        params: Parameters, named parameters or parameter groups.
        lr: α.
        ess: Effective sample size λ: the number of training examples, times the factor of augmentation.
        rho: ρ.
        hess_init: Initial value of s.
        betas: β₁ and β₂.
        weight_decay: δ; the prior is N(0, 1/(λδ)).
        damping: γ.
        prior: A diagonal Gaussian in place of weight decay; needs named parameters.
        seed: Seed of the noise.
        **torch_options: As for every optimizer here: `foreach` has no effect, `maximize` and others are refused.

    Examples:
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> optimizer = BayesianSAM([weight], lr=0.1, ess=100)
        >>> with optimizer.sampled_params(train=True):
        ...     ((weight - 1) ** 2).sum().backward()
        >>> with optimizer.perturbed_params():
        ...     ((weight - 1) ** 2).sum().backward()
        >>> optimizer.step()

    References:
        Möllenhoff and Khan, "SAM as an optimal relaxation of Bayes", 2023.
    """

    options = BayesianSAMOptions
    widths = ("scale",)
    written = ("momentum", "scale")
    faster = "a smaller second beta"

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor,
        ess: float,
        rho: float = 0.01,
        hess_init: float = 1.0,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 1e-4,
        damping: float = 0.1,
        prior: Diagonal | Posterior | None = None,
        seed: int = 0,
        **torch_options: Any,
    ) -> None:
        options = BayesianSAMOptions(
            lr=lr,
            ess=ess,
            rho=rho,
            hess_init=hess_init,
            betas=betas,
            weight_decay=weight_decay,
            damping=damping,
            seed=seed,
        )
        super().__init__(params, options, prior=prior, torch_options=torch_options)

    def initial_state(self, p: Tensor, options: BayesianSAMOptions) -> Views:
        momentum = torch.zeros_like(p, dtype=state_dtype(p.dtype), requires_grad=False)
        scale = torch.full_like(momentum, options.hess_init)
        return {"momentum": momentum, "scale": scale, "forgetting": momentum.new_zeros(())}

    def numbers(self, p: Tensor, options: BayesianSAMOptions) -> Numbers:
        rates = {"rho1": 1 - options.betas[0], "rho2": 1 - options.betas[1]}
        return {"lr": number(options.lr), **rates, **floats(options, "ess", "hess_init", "weight_decay", "damping")}

    @staticmethod
    def precision(view: Mapping[str, Tensor], numbers: Numbers) -> Tensor | float:
        return view.get("scale", numbers["hess_init"]) * numbers["ess"]

    def ascent(self, gradients: dict[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        groups = {p: group for group, p in self._parameters}
        known = {p: self.state.get(p, {}).get("scale") for p in gradients}
        scales = [torch.full_like(p, groups[p]["hess_init"]) if s is None else s for p, s in known.items()]
        steps = torch._foreach_div(list(gradients.values()), scales)
        torch._foreach_mul_(steps, [groups[p]["rho"] for p in gradients])
        return {p: e.to(g) for (p, g), e in zip(gradients.items(), steps, strict=True)}

    @staticmethod
    def update(view: Views, mean: Tensor, gradient: Tensor, product: Tensor | None, numbers: Numbers) -> None:
        s, force = view["scale"], pull(view, mean, numbers)
        view["momentum"].lerp_(gradient / numbers["pairs"] + force, numbers["rho1"])
        mean.sub_(view["momentum"] / s * numbers["lr"])
        if "sizes" in view:
            sharpness = s.sqrt().mul_(view["sizes"] / numbers["pairs"])
            s.lerp_(sharpness.add_(delta(view, numbers) + numbers["damping"]), numbers["rho2"])

    def observe(self, p: Tensor, tensors: Views, options: BayesianSAMOptions, numbers: Numbers) -> None:
        super().observe(p, tensors, options, numbers)
        if "sizes" in tensors:
            self.forget(p, numbers["rho2"])
