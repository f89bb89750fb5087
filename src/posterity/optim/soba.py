"""SOBA, the second-order Bayes of the talks: the improved rule for a diagonal Gaussian, with nothing added."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from posterity.optim._options import GaussianOptions, floats, in_range, number
from posterity.optim._terms import delta, pull
from posterity.optim.engine import VariationalOptimizer
from posterity.optim.kernels import Numbers, Views, statistics
from posterity.posterior import Diagonal, Posterior
from posterity.trees import state_dtype


@dataclass(frozen=True, kw_only=True)
class SOBAOptions(GaussianOptions):
    """The options of a parameter group of SOBA."""

    rho: float = in_range("rho", "a number in (0, 1]")
    momentum: float = in_range("Invalid momentum value", "a number in [0, 1)")


class SOBA(VariationalOptimizer):
    """Second-order Bayes: N(m, 1/s), with natural-gradient steps on the total loss ℓ = λ · mean loss − log prior.

        h = s (θ − m) λĝ + λδ                      (θ − m = ε/√s, so this is ε√s · ĝ in total)
        s ← (1 − ρ) s + ρ h + ½ ρ² (h − s)² / s
        m ← m − α ∇ℓ / s,   ∇ℓ = λ (g + δ m), with the old s;   g ← β g + (1 − β) ĝ, at first ĝ

    The correction keeps s positive for every ρ and h: with x = ρ(h − s)/s the new s is s(1 + x + x²/2) ≥ s/2. Some
    slides print it as ½ ρ² h²/s, which is not enough: with h = r s the new s is s(1 − ρ + ρr + ½ρ²r²), whose minimum
    over r, s(½ − ρ) at r = −1/ρ, is negative for ρ > ½.

    Args:
        params: Parameters, named parameters or parameter groups.
        lr: α; 1 is a full Newton step.
        ess: Effective sample size λ: the number of training examples, or more for a colder posterior.
        rho: ρ, how fast the precision moves.
        hess_init: The precision starts at λ (hess_init + δ).
        weight_decay: δ; the prior is N(0, 1/(λδ)).
        mc_samples: Samples for each `step(closure)`.
        prior: A diagonal Gaussian in place of weight decay; needs named parameters.
        seed: Seed of the noise.
        momentum: β. Schedulers such as OneCycleLR change it by default.
        **torch_options: As for every optimizer here: `foreach` has no effect, `maximize` and others are refused.

    Examples:
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> optimizer = SOBA([weight], lr=0.1, ess=100)
        >>> with optimizer.sampled_params(train=True):
        ...     ((weight - 1) ** 2).sum().backward()
        >>> optimizer.step()

    References:
        Lin, Schmidt and Khan, "Handling the positive-definite constraint in the Bayesian learning rule", 2020.
    """

    options = SOBAOptions
    widths = ("precision", "prior_precision")
    written = ("precision", "momentum")
    given = (*VariationalOptimizer.given, "linear", "quadratic")
    beside = ("momentum",)  # made where an option or a schedule asks for it
    faster = "a larger rho"

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor,
        ess: float,
        rho: float = 0.01,
        hess_init: float = 1.0,
        weight_decay: float = 1e-4,
        mc_samples: int = 1,
        prior: Diagonal | Posterior | None = None,
        seed: int = 0,
        momentum: float = 0.0,
        **torch_options: Any,
    ) -> None:
        options = SOBAOptions(
            lr=lr, ess=ess, rho=rho, hess_init=hess_init, weight_decay=weight_decay, seed=seed, momentum=momentum
        )
        super().__init__(params, options, mc_samples=mc_samples, prior=prior, torch_options=torch_options)

    def initial_state(self, p: Tensor, options: SOBAOptions) -> Views:
        zeros = torch.zeros_like(p, dtype=state_dtype(p.dtype), requires_grad=False)
        return {
            "precision": zeros + self.precision(self._parameters.tensors(p), self.numbers(p, options)),
            "forgetting": zeros.new_zeros(()),
        }

    def numbers(self, p: Tensor, options: SOBAOptions) -> Numbers:
        return {"lr": number(options.lr), **floats(options, "ess", "rho", "hess_init", "weight_decay", "momentum")}

    @staticmethod
    def precision(view: Mapping[str, Tensor], numbers: Numbers) -> Tensor | float:
        if "precision" in view:
            return view["precision"]
        return (delta(view, numbers) + numbers["hess_init"]) * numbers["ess"]

    @staticmethod
    def update(view: Views, mean: Tensor, gradient: Tensor, product: Tensor | None, numbers: Numbers) -> None:
        s, ess = view["precision"], numbers["ess"]
        average = view["momentum"].lerp_(gradient, 1 - numbers["momentum"]) if "momentum" in view else gradient
        step = (average + pull(view, mean, numbers)).mul_(ess).div_(s)
        if product is not None:
            curvature = delta(view, numbers) * ess + view.get("quadratic", 0.0)
            x = (product * ess + curvature / s - 1).mul_(numbers["rho"])  # ρ (h − s)/s
            s.addcmul_(s, x.addcmul_(x, x, value=0.5))
        mean.sub_(step.mul_(numbers["lr"]))

    def observe(self, p: Tensor, tensors: Views, options: SOBAOptions, numbers: Numbers) -> None:
        if "sample" in tensors:
            self.forget(p, numbers["rho"])
        if options.momentum and "momentum" not in self.state[p]:
            first = statistics(tensors, tensors["p"].to(state_dtype(p.dtype)), numbers)[0].clone()
            tensors["momentum"] = self.state[p]["momentum"] = first
