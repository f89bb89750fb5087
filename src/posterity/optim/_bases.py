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
from posterity.optim._distributed import local, sharded
from posterity.optim._forms import check_count, check_form, check_tensor
from posterity.optim._meter import DECAY
from posterity.optim._options import check_finite, check_memory, check_parameters
from posterity.optim.engine import VariationalOptimizer
from posterity.optim.kernels import Numbers
from posterity.posterior import Diagonal
from posterity.startup import step_of

NOT_BELOW_ZERO = ("lr", "betas", "momentum", "eps", "weight_decay", "step", "exp_avg_sq", "max_exp_avg_sq")
MOMENTS = ("exp_avg", "max_exp_avg", "momentum_buffer")  # with a number for each weight
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
    kinds = {_layout(p) for p in owned}  # sums over all weights would count whole ones once for each process
    require(len(kinds) == 1, "base", "parameters that are all sharded alike, or none", f"{len(kinds)} kinds")
    check_memory(owned)
    return bases


def _layout(p: Tensor) -> Any:
    """How a parameter is spread over processes: all its dimensions of processes, and whether each has shards."""
    return (p.device_mesh, *(each.is_shard() for each in p.placements)) if sharded(p) else None


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


def with_delta(h: Tensor | float, view: Mapping[str, Tensor], numbers: Numbers) -> Tensor | float:
    """h + δ of the weights of a parameter, whose prior may differ from weight to weight.

    Where both a weight and its curvature are exactly 0, no gradient ever came: a padding row, or a pruned weight. Noise
    there would have no price that gradients tell, and δ is `still` times as large.

    Args:
        h: Its curvature, where it is known.
        view: Its state, with the means as "p" where they are known.
        numbers: Those of its widths.
    """
    if "prior_precision" in view:
        return h + view["prior_precision"] * numbers["delta"]
    if numbers["still"] == 1 or not {"p", "curvature"} <= view.keys():
        return h + numbers["delta"]
    reached = torch.logical_or(view["p"], view["curvature"])
    return torch.where(reached, h + numbers["delta"], numbers["delta"] * numbers["still"])


def positive(hessian: Tensor) -> Tensor:
    """An estimate of a curvature without its negative numbers, which are not the 0 that `with_delta` looks for."""
    return hessian.where(hessian >= 0, torch.finfo(hessian.dtype).tiny)


def pull(p: Tensor, own: Mapping[str, Tensor], isotropic: float | None, n: float) -> Tensor | None:
    """δ (m − m₀) of a parameter, the gradient of a given prior, if there is one.

    Args:
        p: The parameter.
        own: What `Variational` keeps about it, where the prior differs from weight to weight.
        isotropic: The precision of a prior that does not.
        n: Number of examples N, by which δ is smaller.
    """
    mean = local(p.detach())
    if "prior_precision" in own:
        return (mean - local(own["prior_mean"])) * local(own["prior_precision"]) / n
    return None if isotropic is None else mean * (isotropic / n)


def add(
    parameters: Sequence[Tensor],
    pull_of: Callable[[Tensor], Tensor | None],
    base_of: Callable[[Tensor], tuple[Optimizer, Mapping[str, Any]]],
) -> None:
    """Add the gradient of a given prior to those that the bases step from, some of which go uphill."""
    for p in parameters:
        prior, gradient = pull_of(p), p.grad
        if prior is not None and gradient is not None:
            local(gradient).add_(-prior if base_of(p)[1].get("maximize", False) else prior)


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
    """Whether all bases step in a way that `posterity.optim._looks` knows."""
    return all(keeps_squares(base) or type(base) is torch.optim.SGD for base in bases)


def decay(bases: Sequence[Optimizer]) -> float:
    """The largest weight decay of all groups."""
    return max(float(group.get("weight_decay", 0.0)) for base in bases for group in base.param_groups)


def saved(bases: Sequence[Optimizer]) -> list[dict[str, Any]]:
    """Kind and state of each base; the groups are stored once, in the surrounding state dict."""
    return [{"kind": type(base).__name__, "state": base.state_dict()["state"]} for base in bases]


def check_saved(bases: Sequence[Optimizer], state_dict: StateDict) -> None:
    """Raise unless a state dict holds what `saved` gives for bases of these kinds and shapes, in finite numbers."""
    kinds, given = [type(base).__name__ for base in bases], state_dict.get("bases", ())
    found = [each.get("kind") if isinstance(each, Mapping) else each for each in given] if _is_list(given) else [given]
    if found != kinds:
        check_form({"state": {}, "param_groups": [], **state_dict})
        names = sorted({str(name) for values in state_dict.get("state", {}).values() for name in values})
        others = ", ".join(f"{kind!s:.60}" for kind in found or names) or "one of another optimizer"
        raise expected("state dict", f"one of Variational, over {', '.join(kinds)}", others)
    check_form(state_dict)
    mine = [group for base in bases for group in base.param_groups]
    for group, given in zip(mine, state_dict["param_groups"], strict=False):  # torch refuses lists of other lengths
        _check_options(group, given)
    for base, each in zip(bases, state_dict["bases"], strict=True):
        kept, parameters = each.get("state"), [p for group in base.param_groups for p in group["params"]]
        known = {str(i): p for i, p in enumerate(parameters)}  # JSON has words for keys
        fine = isinstance(kept, Mapping) and all(isinstance(values, Mapping) for values in kept.values())
        require(fine, f"state dict, state of {each['kind']}", "a dictionary for each parameter", type(kept).__name__)
        require({str(i) for i in kept} <= known.keys(), "state dict", f"{len(parameters)} parameters", list(kept))
        for index, values in kept.items():
            for name, value in values.items():
                _check_kept(name, value, known[str(index)])


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _check_options(mine: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raise unless all that is finite numbers in a group of a base is so in the group of a state dict."""
    for name in given.keys() & mine.keys() - {"params"}:
        own, found, what = mine[name], given[name], f"state dict, {name}"
        if isinstance(own, bool):
            chosen = found is None and name in ("foreach", "fused")  # torch chooses by itself
            require(chosen or isinstance(found, bool), what, "True or False", found)
        elif _is_list(own):
            require(_is_list(found) and len(found) == len(own), what, f"{len(own)} numbers", found)
        for old, new in zip(own, found, strict=True) if _is_list(own) else [(own, found)]:
            if isinstance(old, (Real, Tensor)) and not isinstance(old, bool) and math.isfinite(old):
                check_finite(what, new, -ROUNDING if name in NOT_BELOW_ZERO else -math.inf)
                require(name != "betas" or new < 1, what, "numbers in [0, 1)", found)


def _check_kept(name: str, value: Any, p: Tensor) -> None:
    """Raise unless it can be what a base keeps about a parameter; its other state is its own."""
    what = f"state dict, {name!r} of a parameter"
    if name == "step":
        check_count(what, value)
    elif name.startswith(MOMENTS) and not (value is None and name.startswith("momentum")):  # SGD has none at first
        check_tensor(name, value, p, p.shape)
    elif isinstance(value, Tensor):
        check_tensor(name, value, p)
    if name in NOT_BELOW_ZERO and isinstance(value, Tensor) and bool((value < 0).any()):
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
        try:
            step_of(base)()
        except BaseException:
            _forget_parts(base)
            raise


def _forget_parts(base: Optimizer) -> None:
    """Remove state of parameters that no step has moved yet: torch writes some of it before it makes the rest."""
    for p, state in list(base.state.items()):
        if "step" in state and float(state["step"]) == 0:
            del base.state[p]


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
