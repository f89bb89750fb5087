"""The optimizers that move the mean for `Variational`: what they must be, and the second moments that some keep."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import StateDict

from posterity.errors import InvalidInput, expected, require
from posterity.optim._distributed import local
from posterity.optim._meter import DECAY
from posterity.optim._options import check_finite, check_memory, check_parameters
from posterity.optim.engine import VariationalOptimizer
from posterity.posterior import Diagonal
from posterity.startup import step_of
from posterity.trees import state_dtype

NOT_BELOW_ZERO = ("lr", "betas", "momentum", "eps", "weight_decay", "step", "exp_avg_sq", "max_exp_avg_sq")
ROUNDING = 1e-12  # below zero, where a schedule that ends at zero may leave a learning rate
KEEP_SQUARES = (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam)


def checked(base: Any) -> list[Optimizer]:
    """The bases as a list, after a check that they can update a mean together."""
    bases = list(base) if isinstance(base, Sequence) else [base]
    require(bool(bases), "base", "a torch optimizer, or several", "an empty list")
    owned: set[Tensor] = set()
    for each in bases:
        if not isinstance(each, Optimizer):
            raise expected("base", "a torch.optim.Optimizer", type(each).__name__)
        if isinstance(each, VariationalOptimizer):
            raise expected("base", "an optimizer without a posterior of its own", type(each).__name__)
        if isinstance(each, torch.optim.LBFGS) or _needs_closure(each):
            raise InvalidInput(f"base: expected an optimizer that steps without a closure, got {type(each).__name__}")
        if isinstance(each, torch.optim.SparseAdam):
            raise InvalidInput("base: expected an optimizer of dense gradients, such as Adam, got SparseAdam")
        parameters = [p for group in each.param_groups for p in group["params"]]
        require(bool(parameters), "base", "at least one parameter", "none")
        check_parameters(parameters, shards=True)
        repeated = len(parameters) - len(set(parameters))  # torch warns only
        require(not repeated, "base", "each parameter once", f"{repeated} of them twice")
        twice = owned.intersection(parameters)
        require(not twice, "base", "each parameter in one optimizer", f"{len(twice)} in two of them")
        owned.update(parameters)
    check_memory(owned)
    return bases


def _needs_closure(base: Optimizer) -> bool:
    """Whether `step` has an argument without a default, which would be missing here."""
    required = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    )
    _, *arguments = inspect.signature(type(base).step).parameters.values()  # schedulers wrap that of the instance
    return any(a.default is a.empty and a.kind in required for a in arguments)


def checked_precision(prior: float) -> float:
    """The precision of an isotropic prior."""
    require(0 <= prior < math.inf, "prior", "a precision >= 0", prior)
    return float(prior)


def tempered(prior: Mapping[str, tuple[Tensor, Tensor]], temperature: float) -> Diagonal:
    """Means and precisions of a prior, scaled for a posterior of a given temperature."""
    means = {name: mean for name, (mean, _) in prior.items()}
    return Diagonal(means, {name: precision / temperature for name, (_, precision) in prior.items()})


def pull(
    parameters: Sequence[Tensor], state: Mapping[Tensor, Mapping[str, Tensor]], isotropic: float, n: float
) -> None:
    """Add δ (m − m₀), the gradient of a given prior, to the gradients that the bases step from.

    Args:
        parameters: Those with a gradient.
        state: What `Variational` keeps about each, where the prior differs from weight to weight.
        isotropic: The precision of the prior otherwise.
        n: Number of examples N, by which δ is smaller.
    """
    for p in parameters:
        own, gradient = state.get(p, {}), p.grad
        assert gradient is not None
        if "prior_precision" in own:
            away = local(p) - local(own["prior_mean"])
            local(gradient).add_(away * local(own["prior_precision"]) / n)
        else:
            gradient.add_(p, alpha=isotropic / n)


def keeps_squares(base: Optimizer) -> bool:
    """Whether a base has second moments of the gradients in its state."""
    return isinstance(base, KEEP_SQUARES)


def squares(
    base: Optimizer, group: Mapping[str, Any], p: Tensor, own: Mapping[str, Tensor]
) -> tuple[Tensor, float] | None:
    """The average of a parameter's squared gradients and what debiases it; None before its first step.

    Args:
        base: The optimizer of the parameter.
        group: Its group.
        p: The parameter.
        own: What `Variational` keeps about it.
    """
    if keeps_squares(base):
        state = base.state.get(p, {})
        if "exp_avg_sq" not in state:
            return None
        return state["exp_avg_sq"], 1 / (1 - group["betas"][1] ** float(state["step"]))
    if "squares" not in own or float(own["step"]) == 0:
        return None
    return own["squares"], 1 / (1 - DECAY ** float(own["step"]))


def teaches(bases: Sequence[Optimizer]) -> bool:
    """Whether all bases step in a way that `own_doing` knows."""
    return all(keeps_squares(base) or type(base) is torch.optim.SGD for base in bases)


def own_doing(base: Optimizer, group: Mapping[str, Any], p: Tensor) -> Tensor:
    """η (ĝ − ḡ)ᵀ D ĝ of a parameter in the coming step; see `posterity.optim.gap`.

    Args:
        base: The optimizer of the parameter, one of those that `teaches` accepts.
        group: Its group.
        p: The parameter, with a gradient.
    """
    assert p.grad is not None
    state, gradient = base.state.get(p, {}), local(p.grad).to(state_dtype(p.dtype)).reshape(-1)
    if not keeps_squares(base):
        kept, buffer = 1 - group["momentum"], state.get("momentum_buffer")
        away = gradient if buffer is None else gradient - local(buffer).to(gradient).reshape(-1) * kept
        return group["lr"] * torch.dot(away, gradient) / kept
    beta1, beta2 = group["betas"]
    steps, away, squares = float(state.get("step", 0)), gradient, gradient.square() * (1 - beta2)
    if steps:
        away = gradient - local(state["exp_avg"]).to(gradient).reshape(-1) / (1 - beta1**steps)
        squares = squares + beta2 * local(state["exp_avg_sq"]).to(gradient).reshape(-1)
    root = (squares / (1 - beta2 ** (steps + 1))).sqrt_().add_(group["eps"])
    return group["lr"] * torch.dot(away / root, gradient)


def decay(bases: Sequence[Optimizer]) -> float:
    """The largest weight decay of all groups."""
    return max(float(group.get("weight_decay", 0.0)) for base in bases for group in base.param_groups)


def saved(bases: Sequence[Optimizer]) -> list[dict[str, Any]]:
    """Kind and state of each base; the groups are stored once, in the surrounding state dict."""
    return [{"kind": type(base).__name__, "state": base.state_dict()["state"]} for base in bases]


def check_saved(bases: Sequence[Optimizer], state_dict: StateDict) -> None:
    """Raise unless a state dict holds what `saved` gives for bases of these kinds and shapes, in finite numbers."""
    kinds = [type(base).__name__ for base in bases]
    found = [each["kind"] for each in state_dict.get("bases", ())]
    if found != kinds:
        names = sorted({name for values in state_dict.get("state", {}).values() for name in values})
        given = ", ".join(found or names) or "one of another optimizer"
        raise expected("state dict", f"one of Variational, over {', '.join(kinds)}", given)
    mine = [group for base in bases for group in base.param_groups]
    for group, given in zip(mine, state_dict["param_groups"], strict=False):  # torch refuses lists of other lengths
        _check_options(group, given)
    for base, each in zip(bases, state_dict["bases"], strict=True):
        parameters = [p for group in base.param_groups for p in group["params"]]
        for index, values in each["state"].items():
            for name, value in values.items():
                if isinstance(value, Tensor):
                    _check_tensor(name, value, parameters[int(index)] if int(index) < len(parameters) else None)


def _check_options(mine: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raise unless all that is finite numbers in a group of a base is so in the group of a state dict."""
    for name in given.keys() & mine.keys() - {"params"}:
        many = isinstance(mine[name], (tuple, list))
        own, found = (mine[name], given[name]) if many else ([mine[name]], [given[name]])
        require(isinstance(found, (tuple, list)), f"state dict, {name}", f"{len(own)} numbers", found)
        for old, new in zip(own, found, strict=False):
            if isinstance(old, (Real, Tensor)) and not isinstance(old, bool) and math.isfinite(old):
                check_finite(f"state dict, {name}", new, -ROUNDING if name in NOT_BELOW_ZERO else -math.inf)


def _check_tensor(name: str, value: Tensor, p: Tensor | None) -> None:
    """Raise unless it can be what a base keeps about a parameter."""
    what = f"state dict, {name!r} of a parameter"
    if p is not None and value.ndim > 0 and value.shape != p.shape and name.startswith(("exp_avg", "momentum")):
        raise expected(what, f"shape {tuple(p.shape)}", tuple(value.shape))
    require(bool(torch.isfinite(value).all()), what, "finite numbers", "NaN or infinity")
    if name in NOT_BELOW_ZERO and bool((value < 0).any()):
        raise expected(what, "numbers >= 0", value.min().item())


def load(bases: Sequence[Optimizer], state_dict: StateDict) -> None:
    """Load each base from its state and its share of the groups."""
    groups = iter(state_dict["param_groups"])
    for base, each in zip(bases, state_dict["bases"], strict=True):
        numbers = count()
        missing = {name: value for name, value in base.defaults.items() if name != "differentiable"}  # torch adds it
        mine = [missing | next(groups) for _ in base.param_groups]
        mine = [{**group, "params": [next(numbers) for _ in group["params"]]} for group in mine]
        state = {int(index): values for index, values in each["state"].items()}  # JSON has words for keys
        base.load_state_dict({"state": copy.deepcopy(state), "param_groups": mine})  # torch would share tensors


def step(bases: Sequence[Optimizer]) -> None:
    """Move the mean by each base, without loading torch's compiler."""
    for base in bases:
        _follow(base)
        step_of(base)()


def _follow(base: Optimizer) -> None:
    """Convert the state of one of torch's own optimizers where its parameters have been; torch would raise."""
    if not type(base).__module__.startswith("torch.optim"):
        return
    for p, state in base.state.items():
        for name, t in state.items():
            mine = isinstance(t, Tensor) and t.is_floating_point() and t.shape == p.shape and name != "step"
            if mine and (t.dtype != p.dtype or t.device != p.device):
                state[name] = t.to(p)


@contextmanager
def hooked(register: Callable[..., Any], hook: Callable[..., Any]) -> Iterator[None]:
    """Hold a hook in place."""
    handle = register(hook)
    try:
        yield
    finally:
        handle.remove()
