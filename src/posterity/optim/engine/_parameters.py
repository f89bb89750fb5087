"""The parameters of an optimizer with their groups and their state, as the parts of the engine are given them."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posterity.errors import expected
from posterity.optim._distributed import home, whole
from posterity.optim.kernels import Views
from posterity.trees import state_dtype

Group = dict[str, Any]


@dataclass(frozen=True)
class Parameters:
    """A look at `param_groups` and `state` of an optimizer; torch may replace both, so it is taken for each use."""

    groups: list[Group]
    state: MutableMapping[Tensor, Any]

    def __iter__(self) -> Iterator[tuple[Group, Tensor]]:
        return ((group, p) for group in self.groups for p in group["params"])

    def trainable(self) -> Iterator[tuple[int, int, Tensor]]:
        """Those that require a gradient, after their number among all (noise depends on it) and that of their group."""
        every = ((number, p) for number, group in enumerate(self.groups) for p in group["params"])
        return ((index, number, p) for index, (number, p) in enumerate(every) if p.requires_grad)

    def trained(self) -> list[Tensor]:
        """Those that require a gradient."""
        return [p for group in self.groups for p in group["params"] if p.requires_grad]

    def group_of(self, p: Tensor) -> Group:
        """The group of a parameter."""
        return next(group for group, q in self if q is p)

    def steps(self, p: Tensor) -> int:
        """How often a parameter has been updated, the update under way included."""
        return int(self.state.get(p, {}).get("step", 0))

    def tensors(self, p: Tensor) -> Views:
        """The state of a parameter that has one number for each weight."""
        return {name: t for name, t in self.state.get(p, {}).items() if name != "step" and t.shape == p.shape}

    def named(self) -> dict[str, Tensor]:
        """The parameters by name, where the optimizer was given names."""
        names: dict[str, Tensor] = {}
        for group in self.groups:
            if "param_names" not in group:
                raise expected("params", "named parameters, as in model.named_parameters()", "unnamed ones")
            names.update(zip(group["param_names"], group["params"], strict=True))
        return names

    def prior_of(self, p: Tensor, group: Group) -> tuple[Tensor, Tensor]:
        """Mean and precision of the prior of one parameter."""
        state = self.state.get(p, {})
        if "prior_precision" in state:
            colder = group["ess"] / group["n"] if group.get("holds_price", False) else 1.0  # as the posterior is
            return whole(state["prior_mean"]), whole(state["prior_precision"]) * colder
        mean = torch.zeros(p.shape, dtype=state_dtype(p.dtype), device=home(p))
        return mean, mean.new_tensor(group["ess"] * group["weight_decay"])


def followed(state: dict[str, Tensor], p: Tensor) -> dict[str, Tensor]:
    """The state of a parameter, converted in place where the parameter has been: all but its count of steps."""
    dtype = state_dtype(p.dtype)
    for name, t in state.items():
        if name != "step" and (t.dtype != dtype or t.device != p.device):
            state[name] = t.to(p.device, dtype)
    return state
