"""SAM, sharpness-aware minimisation: gradient descent from the worst point nearby."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from posterity.optim._options import LR, Options, check_weight_decay, in_range, number, option
from posterity.optim._points import Point
from posterity.optim._two_pass import TwoPass, joint_norm, scaled
from posterity.optim.kernels import Numbers, Views
from posterity.trees import state_dtype


@dataclass(frozen=True, kw_only=True)
class SAMOptions(Options):
    """The options of a parameter group of SAM."""

    lr: float | Tensor = field(metadata=LR)
    rho: float = in_range("rho", "a number >= 0")
    momentum: float = in_range("Invalid momentum value", "a number in [0, 1)")
    weight_decay: float = option(check_weight_decay)


class SAM(Point, TwoPass):
    """SGD with momentum, on the gradient at the worst point within a distance ρ.

        e = ρ g/‖g‖,  g the gradient at w,  the norm over all parameters
        v ← β v + ∇ℓ(w + e) + δ w,   w ← w − α v

    Two passes a step; see `TwoPass`, also for m-sharpness and mixed precision. Its posterior is a point.

    Args:
        params: Parameters, named parameters or parameter groups.
        lr: α.
        rho: ρ.
        momentum: β.
        weight_decay: δ.
        **torch_options: As for every optimizer here: `foreach` has no effect, `maximize` and others are refused.

    Examples:
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> optimizer = SAM([weight], lr=0.1)
        >>> def closure():
        ...     loss = ((weight - 1) ** 2).sum()
        ...     loss.backward()
        ...     return loss
        >>> optimizer.step(closure).item()
        2.0

    References:
        Foret et al., "Sharpness-aware minimization for efficiently improving generalization", 2021.
    """

    options = SAMOptions
    written = ("momentum",)

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor,
        rho: float = 0.05,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        **torch_options: Any,
    ) -> None:
        super().__init__(
            params,
            SAMOptions(lr=lr, rho=rho, momentum=momentum, weight_decay=weight_decay),
            torch_options=torch_options,
        )

    def initial_state(self, p: Tensor, options: SAMOptions) -> Views:
        return {"momentum": torch.zeros_like(p, dtype=state_dtype(p.dtype), requires_grad=False)}

    def numbers(self, p: Tensor, options: SAMOptions) -> Numbers:
        return {"lr": number(options.lr), "beta": options.momentum, "delta": options.weight_decay}

    def ascent(self, gradients: dict[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        rho = {p: group["rho"] for group, p in self._parameters}
        steps = torch._foreach_mul(list(gradients.values()), [rho[p] for p in gradients])
        length = joint_norm(gradients.values()) + 1e-12
        return dict(zip(gradients, scaled(steps, 1 / length), strict=True))

    @staticmethod
    def update(view: Views, mean: Tensor, gradient: Tensor, product: Tensor | None, numbers: Numbers) -> None:
        view["momentum"].mul_(numbers["beta"]).add_(gradient / numbers["pairs"]).add_(mean * numbers["delta"])
        mean.sub_(view["momentum"] * numbers["lr"])
