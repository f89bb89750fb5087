"""What gradients, and the averages of them that bases keep, tell about a run; see `posterity.optim.gap`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from posterity.optim._bases import keeps_squares
from posterity.optim._distributed import local
from posterity.trees import state_dtype


def looks(
    base_of: Callable[[Tensor], tuple[Optimizer, Mapping[str, Any]]],
    parameters: Iterable[Tensor],
    pull_of: Callable[[Tensor], Tensor | None],
    like: Tensor,
) -> tuple[Tensor, Tensor]:
    """`own_doing` of each parameter, and `growing` of each matrix; zero for others, and where there is no gradient.

    Args:
        base_of: The optimizer of a parameter, and its group.
        parameters: All of them.
        pull_of: The gradient of a given prior, which is in the averages but not in the new gradients.
        like: A number of the wanted type, on the wanted device.
    """
    zero, doing, gains = torch.zeros_like(like), [], []
    for p in parameters:
        given = None if p.grad is None else (*base_of(p), p, pull_of(p))
        doing.append(own_doing(*given).to(like) if given else zero)
        gains.append(growing(*given).to(like) if given and p.ndim >= 2 else zero)
    return torch.stack(doing), torch.stack(gains)


def own_doing(base: Optimizer, group: Mapping[str, Any], p: Tensor, pull: Tensor | None = None) -> Tensor:
    """η (ĝ − ḡ)ᵀ D ĝ of a parameter in the coming step.

    Args:
        base: The optimizer of the parameter, one of those that `teaches` accepts.
        group: Its group.
        p: The parameter, with a gradient.
        pull: The gradient of a given prior.
    """
    gradient, before = _gradient(group, p), _average(base, group, p, pull)
    away = gradient if before is None else gradient - before
    if not keeps_squares(base):
        return group["lr"] * torch.dot(away, gradient) * _reach(group)
    state, beta2 = base.state.get(p, {}), group["betas"][1]
    squares = gradient.square() * (1 - beta2)
    if before is not None:
        squares = squares + beta2 * local(state["exp_avg_sq"]).to(gradient).reshape(-1)
    root = (squares / (1 - beta2 ** (float(state.get("step", 0)) + 1))).sqrt_().add_(group["eps"])
    return group["lr"] * torch.dot(away / root, gradient)


def growing(base: Optimizer, group: Mapping[str, Any], p: Tensor, pull: Tensor | None = None) -> Tensor:
    """−mᵀḡ of a parameter, from its last gradient where a base keeps no average; arguments as in `own_doing`."""
    before = _average(base, group, p, pull)
    gradient = _gradient(group, p) if before is None else before
    return -torch.dot(_flat(p.detach(), p), gradient)


def _flat(t: Tensor, p: Tensor) -> Tensor:
    return local(t).to(state_dtype(p.dtype)).reshape(-1)


def _gradient(group: Mapping[str, Any], p: Tensor) -> Tensor:
    """ĝ, downhill."""
    assert p.grad is not None
    return -_flat(p.grad, p) if group.get("maximize", False) else _flat(p.grad, p)


def _average(base: Optimizer, group: Mapping[str, Any], p: Tensor, pull: Tensor | None) -> Tensor | None:
    """ḡ, the average of earlier gradients that a base keeps, if there is one, without the decay and the prior in it."""
    state = base.state.get(p, {})
    if keeps_squares(base):
        kept, sum_of_weights = state.get("exp_avg"), 1 - group["betas"][0] ** float(state.get("step", 0))
    else:
        forgets = group["momentum"] < 1 and group["dampening"] < 1
        kept, sum_of_weights = state.get("momentum_buffer") if forgets else None, _reach(group)
    if kept is None or sum_of_weights == 0:
        return None
    found, decay = _flat(kept, p) / sum_of_weights, group.get("weight_decay", 0.0)
    if not group.get("decoupled_weight_decay"):
        found = found - decay * _flat(p.detach(), p)
    return found if pull is None else found - _flat(pull, p)


def _reach(group: Mapping[str, Any]) -> float:
    """How far SGD goes along a gradient in all steps together, as a multiple of its learning rate."""
    momentum, taken = group["momentum"], 1 - group["dampening"]
    if not momentum:  # then there is no dampening either
        return 1.0
    return float(taken / (1 - momentum) if momentum < 1 else taken)
