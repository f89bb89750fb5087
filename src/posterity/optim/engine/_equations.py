"""What tells one optimizer from another: its options, its state, and the equations of a sample and of an update."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from posterity.optim import kernels
from posterity.optim._diagnostics import DiagnosedWeights, quantiles, some
from posterity.optim._distributed import home, local, whole
from posterity.optim._options import Options
from posterity.optim.engine._parameters import Group, Parameters, followed
from posterity.optim.kernels import Coefficients, Numbers, Piece, Views
from posterity.trees import state_dtype


class Equations:
    """The part of an optimizer that its own file provides.

    That is its options, the initial state of a parameter (`initial_state`), the numbers of its equations (`numbers`),
    the posterior precision (`precision`) and the update (`update`). Who draws or steps in other ways than weight by
    weight replaces `perturb` or `apply`.
    """

    param_groups: list[Group]
    state: defaultdict[Tensor, Any]

    options: type[Options]  # what a parameter group may say
    widths: tuple[str, ...]  # names of the state that `precision` reads
    written: tuple[str, ...]  # names of the state that `update` changes
    given: tuple[str, ...] = ("prior_mean", "prior_precision")  # names of the state that users may set
    beside: tuple[str, ...] = ()  # names of the state that `initial_state` does not return
    faster = 'betas=(0.9, "auto") and total_steps'  # what lets the Hessian move faster
    calmer = "a smaller lr"  # what keeps training from diverging
    shards = True  # whether parameters may be sharded
    capturable = False  # whether a CUDA graph can hold its steps

    # ── what a subclass provides ─────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def initial_state(self, p: Tensor, options: Any) -> Views:
        """State of a parameter before its first update, besides `step`."""

    @abstractmethod
    def numbers(self, p: Tensor, options: Any) -> Numbers:
        """The numbers of one parameter's equations, from the options of its group and its state."""

    @staticmethod
    @abstractmethod
    def precision(view: Mapping[str, Tensor], numbers: Numbers) -> Tensor | float:
        """Posterior precision of each weight of a block."""

    @staticmethod
    @abstractmethod
    def update(view: Views, mean: Tensor, gradient: Tensor, product: Tensor | None, numbers: Numbers) -> None:
        """Update mean and state of a block in place; the product of noise and gradient is None without noise."""

    def observe(self, p: Tensor, tensors: Views, options: Any, numbers: Numbers) -> None:
        """Called before a parameter is updated: measure what `diagnostics` reports, adapt numbers to it."""

    def forget(self, p: Tensor, rate: float | Tensor) -> None:
        """Count that the precision of a parameter forgets this share of its initial value in the coming update."""
        kept = (-rate).log1p() if isinstance(rate, Tensor) else math.log(max(1 - rate, 1e-9))
        self.state[p]["forgetting"].sub_(kept)

    def clipped(self, p: Tensor, options: Any) -> int:
        """How many weights of a parameter a bound on the step holds back at the moment."""
        return 0

    def coefficients(self, options: Any) -> Coefficients | None:
        """The numbers of a group for fused kernels; None without such kernels."""
        return None

    def width_state(self, p: Tensor) -> Views:
        """The state of a parameter that `precision` reads."""
        return {name: t for name, t in followed(self.state.get(p, {}), p).items() if name in self.widths}

    def perturb(self, pieces: list[Piece], overwritten: list[Piece]) -> None:
        """Put a sample in place of each mean, and the mean into the buffer."""
        kernels.perturb(self.precision, pieces, overwritten)

    def apply(self, pieces: list[Piece]) -> None:
        """Update mean and state of each parameter from its statistics; called at the mean, with finite gradients."""
        kernels.update(self.update, pieces, self.written)

    # ── what follows from it ─────────────────────────────────────────────────────────────────────────────────────

    @property
    def _parameters(self) -> Parameters:
        return Parameters(self.param_groups, self.state)

    def _trained(self) -> list[Tensor]:
        return self._parameters.trained()

    def _steps(self, p: Tensor) -> int:
        """How often a parameter has been updated, the update under way included."""
        return self._parameters.steps(p)

    def options_of(self, group: Group) -> Any:
        """The options of a parameter group."""
        return self.options.of(group)

    def state_of(self, p: Tensor, group: Group) -> Views:
        """The initial state of a parameter."""
        state: Views = self.state[p]
        if "step" not in state:
            first = self.initial_state(p, self.options_of(group))
            parts = {name: t if t.ndim else local(t) for name, t in first.items()}
            state.update({"step": torch.tensor(0.0, dtype=torch.float32), **parts})  # at once: it may be interrupted
        return followed(state, p)

    def precision_of(self, p: Tensor, group: Group) -> Tensor:
        """Posterior precision of each weight of one parameter."""
        precision = self.precision(self._parameters.tensors(p), self.numbers(p, self.options_of(group)))
        found = torch.as_tensor(precision, dtype=state_dtype(p.dtype), device=p.device)
        return whole(found).to(home(p)).expand(p.shape)

    def part_of(self, p: Tensor, group: Group) -> DiagnosedWeights:
        """What `diagnostics` needs about one parameter."""
        options, state, prior = self.options_of(group), self.state.get(p, {}), self._parameters.prior_of(p, group)
        rho = self.numbers(p, options)["rho2"] if "spread" in state else 0.0
        return DiagnosedWeights(whole(p), self.precision_of(p, group), prior, state, self.clipped(p, options), rho)

    @torch.no_grad()
    def median_sigma(self) -> float:
        """The median of the posterior standard deviations, as `diagnostics` has it, without the rest."""
        trained = [(p, group) for group, p in self._parameters if p.requires_grad]
        total = sum(p.numel() for p, _ in trained)
        return quantiles([some(self.precision_of(p, group), total).rsqrt().cpu() for p, group in trained])[1]
