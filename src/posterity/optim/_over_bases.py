"""A variational optimizer over others that move its mean: it shares their groups, and its state holds theirs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import StateDict

from posterity.optim import _bases
from posterity.optim._distributed import Noise
from posterity.optim._forms import all_or_nothing, check_parts
from posterity.optim._options import Options
from posterity.optim.engine import Group, VariationalOptimizer

OWN = ("seed", "draws", "skipped")  # what is ours in the groups of a base


class OverBases(VariationalOptimizer):
    """What `Variational` shares with its bases: parameter groups, and a state dict with theirs inside.

    Args:
        base: A torch optimizer, or several that share the parameters.
        options: What is ours in their groups.
        mc_samples: Samples for each `step(closure)`.
        fused: Whether kernels may take samples and steps.
        noise: Of the replicas of a model on many processes.
        process_group: The processes that hold replicas.
    """

    def __init__(
        self,
        base: Optimizer | Sequence[Optimizer],
        options: Options,
        *,
        mc_samples: int,
        fused: bool | None,
        noise: Noise,
        process_group: Any,
    ) -> None:
        self.bases = _bases.checked(base)
        self._owners: dict[Tensor, tuple[Optimizer, Group]] = {}
        super().__init__(
            self.param_groups, options, mc_samples=mc_samples, fused=fused, noise=noise, process_group=process_group
        )
        self.defaults = self.bases[0].defaults | self.defaults  # where schedulers look for momentum and betas

    @abstractmethod
    def own_state(self) -> StateDict:
        """What is saved beside the state of the bases."""

    @abstractmethod
    def check_own_state(self, found: StateDict) -> None:
        """Raise unless `load_own_state` can take this."""

    @abstractmethod
    def load_own_state(self, found: StateDict) -> None:
        """Take back what `own_state` gave."""

    # ── the groups are those of the bases ────────────────────────────────────────────────────────────────────────

    @property
    def param_groups(self) -> list[Group]:
        """The groups of all bases: the very dictionaries that they and their schedulers use."""
        return [group for each in self.bases for group in each.param_groups]

    @param_groups.setter
    def param_groups(self, _: list[Group]) -> None:
        pass  # torch sets a list of its own when an optimizer is made or loaded

    def add_param_group(self, param_group: Group) -> None:
        """Add a group to the last base."""
        if not any(param_group is group for group in self.param_groups):
            self.bases[-1].add_param_group(param_group)
            _bases.checked(self.bases)
        for name in OWN:
            param_group.setdefault(name, self.defaults[name])  # torch keeps the dictionary itself
        self.options_of(param_group).check()

    def base_of(self, p: Tensor) -> tuple[Optimizer, Group]:
        """The optimizer of a parameter, and its group there."""
        if p not in self._owners:
            self._owners = {q: (b, g) for b in self.bases for g in b.param_groups for q in g["params"]}
        return self._owners[p]

    # ── state ────────────────────────────────────────────────────────────────────────────────────────────────────

    def state_dict(self) -> StateDict:
        """The state of the bases, and beside it our own."""
        with _bases.hooked(self.register_state_dict_post_hook, self._add_state):
            return super().state_dict()

    def _add_state(self, _: Optimizer, state_dict: StateDict) -> None:
        state_dict |= {"bases": _bases.saved(self.bases)} | self.own_state()

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load a state dict; one of other bases or shapes is refused and changes nothing."""
        final: list[StateDict] = []

        def check(_: Optimizer, found: StateDict) -> None:
            _bases.check_saved(self.bases, found)
            check_parts(self.own_state(), found)
            self.check_own_state(found)
            final.append(found)

        def load(_: Optimizer) -> None:
            _bases.load(self.bases, final[0])
            for group in self.param_groups:
                for name in OWN:
                    group.setdefault(name, self.defaults[name])
            self.load_own_state(final[0])
            self._owners = {}

        after = partial(self.register_load_state_dict_post_hook, prepend=True)  # users' hooks see what was loaded
        hooks = _bases.hooked(self.register_load_state_dict_pre_hook, check), _bases.hooked(after, load)
        with hooks[0], hooks[1], all_or_nothing(self, *self.bases):
            super().load_state_dict(state_dict)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"bases": self.bases}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "bases" in state:
            self.bases, self._owners = state["bases"], {}
        super().__setstate__(state)
        self.__dict__.pop("param_groups", None)
