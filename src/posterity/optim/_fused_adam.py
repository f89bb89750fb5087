"""The backend of `Variational` over Adam or AdamW: fused kernels take its samples, prices and steps.

The averages and the step counts stay in the state of the base. Kernels take over when the first noise comes, as base
and widths are known from then on; several samples a step, noise of each process, shards, half precisions and bases
with hooks are left to tensor operations, as are steps whose gradients are at the mean.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from itertools import chain
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer

from posterity.optim._distributed import sharded
from posterity.optim._meter import Meter, scale_of
from posterity.optim._normalised import QUIET, Normalised
from posterity.optim.engine import Group
from posterity.optim.engine._backend import Work
from posterity.optim.engine._fused import Fused
from posterity.optim.engine._lifecycle import Lifecycle, Phase
from posterity.optim.engine._statistics import dot, norm
from posterity.optim.kernels import AdamKernels, Course, Entry, Kernels, adam_kernels_for, like

REFUSED = ("amsgrad", "maximize", "differentiable", "foreach")  # options of Adam that the kernels do not know


class Owner(Protocol):
    """What the backend needs from a `Variational`."""

    bases: list[Optimizer]
    meter: Meter
    n: float
    scaler: torch.amp.GradScaler | None
    deltas: dict[Tensor, Tensor | float]
    normalised: Normalised
    param_groups: list[Group]

    fused: bool | None

    @property
    def given_prior(self) -> float | None:
        """The precision of a prior that was given as one number."""

    def base_of(self, p: Tensor) -> tuple[Optimizer, Group]:
        """The optimizer of a parameter, and its group there."""

    def stepped(self) -> None:
        """Called when a step has been taken."""


class FusedAdam(Fused):
    """Samples and steps of one `Variational`, wherever kernels can take them."""

    _sums_products = False

    def __init__(self, owner: Owner) -> None:
        super().__init__()
        self._owner = owner
        self._deltas = torch.empty(0)
        self._entries: tuple[Tensor, ...] = ()
        self._quiet = torch.empty(0)
        self._looked = False  # whether the gradients of the last sample were looked at

    # ── samples ──────────────────────────────────────────────────────────────────────────────────────────────────

    def place(self, work: Work, fresh: bool) -> bool:
        self._looked = False
        return super().place(work, fresh) or self._left()

    def _left(self) -> bool:
        """Use tensor operations instead."""
        self.catch_up()
        return False

    def catch_up(self) -> None:
        """Let the meter of the host be where that of the device is."""
        if isinstance(self._launcher, AdamKernels):
            self._launcher.catch_up()

    def take_away(self, work: Work) -> bool:
        samples = work.samples
        if samples.redrawable and not self._looked and samples.phase is not Phase.AHEAD:
            self.look(samples)
        return super().take_away(work)

    def look(self, samples: Lifecycle) -> None:
        if samples.redrawable and isinstance(self._launcher, AdamKernels):
            self._launcher.size(self._gradients())
            self._looked = True
        else:
            super().look(samples)

    def _gradients(self) -> list[Tensor | None]:
        return [p.grad for p in self._parameters]

    def write_down(self, samples: Lifecycle) -> None:
        """Write the last sample to memory, with what a step by tensor operations needs."""
        launcher, waits = self._launcher, samples.redrawable and not samples.in_place
        super().write_down(samples)
        if not waits or not isinstance(launcher, AdamKernels):
            return
        ratio, statistics = launcher.scaled(self._gradients()), samples.statistics
        parts = [dot(self._buffers[p], p, p.grad) for p in self._parameters if p.grad is not None]
        if parts:
            statistics.totals.append(torch.stack(parts).sum() / ratio.to(parts[0]))
        for p in self._parameters:
            statistics.kept[p].norm = None if p.grad is None else norm(p.grad) / ratio.to(p)

    def _subtract_gradients(self, samples: Lifecycle) -> None:
        """Take earlier gradients that were added to out of the price of the sample."""
        pending, self._before = self._accumulated(), {}
        if pending and samples.redrawable:
            self.write_down(samples)
            earlier = torch.stack([dot(self._buffers[p], p, copy) for p, copy in pending]).sum()
            samples.statistics.totals[-1] -= earlier

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────

    def step(self, work: Work) -> bool:
        return super().step(work) or self._left()

    def _take(self, launcher: Kernels, work: Work, gradients: list[Tensor | None], taken: list[int]) -> None:
        assert isinstance(launcher, AdamKernels)
        samples = work.samples
        if samples.in_place and not self._looked:
            self.look(samples)
        if launcher.step(gradients, self._course(), held=samples.in_place, ahead=samples.ahead, done=taken):
            for base in self._owner.bases:
                base._opt_called = True  # type: ignore[attr-defined]  # which schedulers ask
            self._looked = False
            self._owner.stepped()
            return
        if samples.in_place:
            self.take_away(work)
        samples.discard()
        for group in work.parameters.groups:
            group["skipped"] += 1

    # ── kernels and what they point to ───────────────────────────────────────────────────────────────────────────

    def _possible(self, work: Work) -> bool:
        owner, first = self._owner, next((p for _, p in work.parameters if p.requires_grad), None)
        if owner.fused is False or owner.meter.silent or owner.meter.by_price or first is None:
            return False
        known = self._launcher is not None or all(self._known(p, work) for p in work.parameters.trained())
        if not known or not all(map(_plain, owner.bases)):
            return False
        kernels = adam_kernels_for(first.device)
        self.missing = kernels if isinstance(kernels, str) else ""
        return not self.missing

    def _known(self, p: Tensor, work: Work) -> bool:
        """Whether a parameter is of a kind that kernels take, and has been updated before."""
        state = self._owner.base_of(p)[0].state.get(p, {})
        mine = "exp_avg_sq" in state and state["exp_avg_sq"].dtype == state["step"].dtype == p.dtype == torch.float32
        diagonal = "prior_precision" in work.parameters.state.get(p, {})
        return mine and p in self._owner.deltas and not diagonal and not sharded(p)

    def _set_numbers(self, launcher: Kernels, work: Work) -> None:
        assert isinstance(launcher, AdamKernels)
        rows = [self._numbers_of(group) for group in work.parameters.groups]
        launcher.table.set_numbers(rows)
        for number, group in enumerate(work.parameters.groups):
            if isinstance(group["lr"], Tensor):
                launcher.table.scale_lr(number, group["lr"])
        self._rebind()
        launcher.follow(self._course())

    def _numbers_of(self, group: Group) -> list[float]:
        lr = 1.0 if isinstance(group["lr"], Tensor) else group["lr"]
        decay, decoupled = group["weight_decay"], group["decoupled_weight_decay"]
        prior = (self._owner.given_prior or 0.0) / self._owner.n
        return [lr, *group["betas"], group["eps"], decay * decoupled, prior + decay * (not decoupled)]

    def _widths(self, work: Work) -> list[Any]:
        return []  # the meter moves in steps alone

    def _course(self) -> Course:
        owner = self._owner
        share = owner.normalised.share
        rates = [group["lr"] for group in owner.param_groups]
        scale, given = scale_of(owner.scaler, owner.meter.scale), owner.given_prior is not None
        return Course(owner.meter, rates, share, self._deltas, self._quiet, given, scale)

    def _rebind(self) -> None:
        """Let δ of each parameter be an entry of one vector that kernels read and write."""
        owner = self._owner
        if len(owner.deltas) == len(self._entries) and all(map(operator.is_, owner.deltas.values(), self._entries)):
            return
        for p, entry in zip(self._parameters, self._entries, strict=True):
            found = owner.deltas[p]
            if found is not entry:
                entry.copy_(torch.as_tensor(found))
                owner.deltas[p] = entry

    def _all_tensors(self, work: Work) -> Iterator[Any]:
        states = chain.from_iterable(base.state.values() for base in self._owner.bases)
        return chain(super()._all_tensors(work), chain.from_iterable(map(dict.values, states)))

    def _build(self, work: Work, trainable: list[tuple[int, int, Tensor]]) -> AdamKernels:
        statistics, groups, device = work.samples.statistics, work.parameters.groups, trainable[0][2].device
        self._count_on(device, groups)
        self._parameters = [p for _, _, p in trainable]
        self._buffers = {p: statistics.keep(p).buffer for p in self._parameters}
        entries = []
        for index, number, p in trainable:
            base, _ = self._owner.base_of(p)
            state, own = base.state[p], work.equations.state_of(p, groups[number])
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = like(p.detach(), state[name])
            state["step"], own["step"] = (t["step"].to(device, torch.float32) for t in (state, own))
            averages = {"momentum": state["exp_avg"], "hessian": state["exp_avg_sq"]}
            counts = {"step": state["step"], "updates": own["step"]}
            entries.append(
                Entry({"p": p.detach(), "buffer": self._buffers[p], **averages, **counts}, number, index, False)
            )
        self._deltas = torch.zeros(len(entries), dtype=torch.float32, device=device)
        self._entries = self._deltas.unbind()
        quiet = [QUIET if p in self._owner.normalised else 1.0 for p in self._parameters]
        self._quiet = torch.tensor(quiet, dtype=torch.float32, device=device)
        kernels = adam_kernels_for(device)
        assert not isinstance(kernels, str), kernels
        return kernels(entries, self._marks(work))


def _plain(base: Optimizer) -> bool:
    """Whether a base is an Adam without hooks or changed steps, in a variant that the kernels support."""
    hooks = (
        *(base._optimizer_step_pre_hooks, base._optimizer_step_post_hooks),
        *(torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks),
    )
    step = vars(base).get("step")
    own = step is None or hasattr(step, "_wrapped_by_lr_sched")
    known = type(base) in (torch.optim.Adam, torch.optim.AdamW)
    return known and own and not any(hooks) and all(map(_plain_group, base.param_groups))


def _plain_group(group: Group) -> bool:
    numbers = (*group["betas"], group["eps"], group["weight_decay"])
    return not any(map(group.get, REFUSED)) and not any(isinstance(x, Tensor) for x in numbers)
