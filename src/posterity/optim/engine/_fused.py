"""The backend of optimizers whose equations exist as fused kernels, which draw samples and take steps.

Counters are on the device, so that nothing waits for it: a step with NaN or infinite gradients is skipped there; the
warning follows when the host reads the counters. Of several samples a step each is written down, and its product with
the gradient is summed when the next one is drawn. Averages of several estimates, products of each process and steps of
shards are left to tensor operations.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from posterity.optim._distributed import any_sharded, first_index, local, locals_of, sharded
from posterity.optim.engine._backend import Backend, Work
from posterity.optim.engine._lifecycle import Lifecycle, Means, Phase
from posterity.optim.engine._parameters import Group, Parameters
from posterity.optim.engine._statistics import norm
from posterity.optim.kernels import (
    Coefficients,
    Entry,
    IVONKernels,
    Kernels,
    Marks,
    Piece,
    average,
    kernels_for,
    laid_out,
    require_dense,
    usable,
)

_requires_grad = operator.attrgetter("requires_grad")  # faster over many tensors than a loop


class Fused(Backend):
    """Samples and steps by fused kernels, wherever they can do it."""

    _sums_products = True  # whether kernels sum products of several samples

    def __init__(self) -> None:
        self.missing = ""  # why there are no kernels
        self._launcher: Kernels | None = None
        self._places: list[int] = []
        self._seen: list[Any] = []
        self._parameters: list[Tensor] = []
        self._drawn: list[Any] = []  # what the widths of the last sample depend on, besides tensors
        self._buffers: dict[Tensor, Tensor] = {}
        self._before: dict[Tensor, tuple[Tensor, Tensor]] = {}  # gradients older than the sample, and copies of them
        self._waiting: dict[Tensor, Any] = {}  # the state of parameters before their first update
        self._report: Tensor | None = None  # skipped steps, as far as the host knows
        self._told = 0  # how many of them have been said

    def place(self, work: Work, fresh: bool) -> bool:
        samples = work.samples
        if not samples.train or not self._possible(work):
            return False
        statistics, alone = samples.statistics, self._alone(samples)
        self.write_down(samples)
        launcher = self._ready(work)
        if launcher is None:
            return False
        self._set_numbers(launcher, work)
        if alone and not any_sharded(self._parameters):
            self._remember_gradients()
            self._draw(launcher, samples, fresh, (), redrawable=True)
        else:
            summed = self._sums_products and statistics.finished > 0 and not statistics.per_rank
            self._buffers = {p: statistics.buffer(p, True, summed) for p in self._parameters}
            self._draw(launcher, samples, fresh, self._sums(samples) if summed else (), summed=summed)
        return True

    def _alone(self, samples: Lifecycle) -> bool:
        """Whether a sample is the only one since the last step, so far."""
        statistics = samples.statistics
        return not (samples.redrawable or statistics.finished or statistics.closed or statistics.per_rank)

    def _draw(self, launcher: Kernels, samples: Lifecycle, fresh: bool, sums: tuple[Any, ...], **how: bool) -> None:
        drawn: list[int] = []
        try:
            launcher.draw(*sums, fresh=fresh, done=drawn)
            increment_version(locals_of(self._parameters))
            samples.place(self._buffers, **how)
        except BaseException:
            if not samples.in_place:
                launcher.undo(drawn)
            raise

    def _sums(self, samples: Lifecycle) -> tuple[list[Tensor | None], list[Tensor | None]]:
        """The gradients, and the sums of products beside them."""
        kept, gradients = samples.statistics.kept, [p.grad for p in self._parameters]
        pairs = zip(self._parameters, gradients, strict=True)
        products = [None if g is None else kept[p].stored("product") for p, g in pairs]
        return [None if g is None else local(g) for g in gradients], products

    @torch.no_grad()
    def take_away(self, work: Work) -> bool:
        samples = work.samples
        if self._launcher is None or not samples.train:
            return False
        unmoved = self._unmoved(work, thorough=False)
        if unmoved and samples.means is self._buffers:  # otherwise kernels would put it where the parameters were
            samples.exchange = _Restore(self._launcher, keep=not samples.redrawable)
        if not samples.redrawable:
            samples.take_away()
            return True
        samples.exchange(samples.means, samples.back)
        if not unmoved:
            self._launcher = None
            self.look_again()
        samples.taken_away()
        self._subtract_gradients(samples)
        if self._launcher is None:
            self.write_down(samples)
        return True

    def step(self, work: Work) -> bool:
        samples = work.samples
        one = samples.statistics.finished + samples.in_place == 1 and not samples.statistics.closed
        if samples.phase is Phase.AHEAD or not samples.redrawable or not one:
            return False
        if not self._unmoved(work, thorough=samples.ahead) or self._widths(work) != self._drawn:
            if samples.in_place:  # the sample is one of others
                self.take_away(work)
            self.write_down(samples)
            return False
        launcher, gradients = self._launcher, [p.grad for p in self._parameters]
        if self._accumulated():
            if samples.in_place:
                self.take_away(work)
            return False
        if launcher is None or all(g is None for g in gradients):
            self.write_down(samples)
            return False
        self._set_numbers(launcher, work)
        taken: list[int] = []
        try:
            self._take(launcher, work, gradients, taken)
        finally:  # also where it was interrupted after that
            if taken:
                self._after_step(work)
                samples.stepped()
                if samples.ahead:
                    samples.place_ahead(self._buffers)
        return True

    def _take(self, launcher: Kernels, work: Work, gradients: list[Tensor | None], taken: list[int]) -> None:
        """Take a step from the one sample, after which `taken` has grown."""
        assert isinstance(launcher, IVONKernels)
        samples = work.samples
        launcher.step(gradients, held=samples.in_place, ahead=samples.ahead, done=taken)

    def update(self, work: Work, parameters: Sequence[tuple[Group, Tensor]], estimates: int) -> bool:
        statistics, launcher, given = work.samples.statistics, self._launcher, [p for _, p in parameters]
        if not isinstance(launcher, IVONKernels) or any(map(sharded, given)) or not self._unmoved(work):
            return False
        if self._widths(work) != self._drawn:
            return False  # kernels would not draw the last sample again
        averaged = estimates > 1 or statistics.closed > 0
        if averaged and any(p.dtype != torch.float32 for p in given):
            return False  # kernels would have the averaged gradients rounded
        if not statistics.finished or (statistics.per_rank and any(statistics.kept[p].product is None for p in given)):
            return False  # some gradients are at the mean
        self._set_numbers(launcher, work)
        if averaged or statistics.per_rank:
            evidence = {p: statistics.evidence(p, estimates) for p in given}
            pieces = {p: Piece({"p": p.detach(), **tensors}, numbers) for p, (tensors, numbers) in evidence.items()}
            found = {p: average(piece) for p, piece in pieces.items()}
            launcher.step(*zip(*(found.get(p, (None, None)) for p in self._parameters), strict=True), sampled=False)
        else:
            for p in given:
                statistics.rescale(p)
            launcher.step(*self._sums(work.samples))
        self._after_step(work)
        return True

    def _after_step(self, work: Work) -> None:
        increment_version(self._parameters)
        self._show_state(work)

    # ── a sample that stays in place ─────────────────────────────────────────────────────────────────────────────

    def may_stay(self, samples: Lifecycle) -> bool:
        """Whether a sample may stay in place until the step, where no gradient before it has to be taken out."""
        return samples.redrawable and not self._accumulated()

    def look(self, samples: Lifecycle) -> None:
        """Look at the gradients of the sample in place, before anybody scales them."""
        if not samples.redrawable:
            samples.statistics.measure(samples.means)

    def look_again(self) -> None:
        """Let the next sample look for all tensors anew: some are not what they were."""
        self._places = []

    def forget_gradients(self, work: Work) -> None:
        """All gradients are being cleared, and with them a sample that only waits for its step."""
        self._before = {}
        samples = work.samples
        waits = samples.in_place and samples.phase is not Phase.AHEAD and samples.passes <= 0
        if waits and samples.redrawable and not samples.context_open:
            self.take_away(work)
            samples.discard()

    def _remember_gradients(self) -> None:
        """Keep a copy of gradients that are there before the sample: they will be cleared, or added to."""
        earlier = {p: p.grad for p in self._parameters if p.grad is not None}
        require_dense(*earlier.values())
        copies = torch._foreach_add(list(earlier.values()), 0) if earlier else []
        self._before = {p: (g, copy) for (p, g), copy in zip(earlier.items(), copies, strict=True)}

    def _accumulated(self) -> list[tuple[Tensor, Tensor]]:
        return [(p, copy) for p, (gradient, copy) in self._before.items() if p.grad is gradient]

    def _subtract_gradients(self, samples: Lifecycle) -> None:
        """Take earlier gradients that were added to out of the product of noise and gradient, and so store it."""
        pending, self._before = self._accumulated(), {}
        if pending and samples.redrawable:
            self.write_down(samples)
            for p, copy in pending:
                kept = samples.statistics.kept[p]
                kept.accumulate(p, kept.buffer, copy)
                kept.norm = None if p.grad is None else norm(p.grad)

    def write_down(self, samples: Lifecycle) -> None:
        """Store the last sample, for use beside the next one."""
        if samples.redrawable and not samples.in_place and self._launcher is not None:
            self._launcher.draw(fresh=False, keep=True)
        samples.redrawable = samples.redrawable and samples.in_place

    # ── kernels and what they point to ───────────────────────────────────────────────────────────────────────────

    def _possible(self, work: Work) -> bool:
        first = next(iter(work.parameters), None)
        if first is None or work.equations.coefficients(work.equations.options_of(first[0])) is None:
            return False
        kernels = kernels_for(first[1].device)
        self.missing = kernels if isinstance(kernels, str) else ""
        return not self.missing

    def _ready(self, work: Work) -> Kernels | None:
        """The kernels, set up anew if a tensor is another one than before."""
        if not self._unmoved(work):
            trainable = list(work.parameters.trainable())
            self._launcher = None
            here = [local(p) for _, _, p in trainable if local(p).numel() or not sharded(p)]
            if self._possible(work) and usable(here):
                self._launcher = self._build(work, trainable)
            self._places, self._seen = self._addresses(work), list(self._all_tensors(work))
        return self._launcher

    def _coefficients(self, work: Work) -> list[Coefficients]:
        found = (work.equations.coefficients(work.equations.options_of(group)) for group in work.parameters.groups)
        return [numbers for numbers in found if numbers is not None]

    def _set_numbers(self, launcher: Kernels, work: Work) -> None:
        coefficients = self._coefficients(work)
        launcher.table.set_numbers([list(numbers.values) for numbers in coefficients])
        self._drawn = [(numbers.ess, numbers.delta) for numbers in coefficients]
        for number, group in enumerate(work.parameters.groups):
            if isinstance(group["lr"], Tensor):
                launcher.table.scale_lr(number, group["lr"])

    def _widths(self, work: Work) -> list[Any]:
        return [(numbers.ess, numbers.delta) for numbers in self._coefficients(work)]

    def _unmoved(self, work: Work, thorough: bool = True) -> bool:
        """Whether the tensors are those whose addresses the kernels have.

        Args:
            work: What to work on.
            thorough: Whether to look at the state as well, and not at the addresses of the parameters alone.
        """
        if self._addresses(work) != self._places:
            return False
        none = object()
        pairs = chain(self._all_tensors(work), (none,)), chain(self._seen, (none,))
        return not thorough or all(map(operator.is_, *pairs))

    @staticmethod
    def _addresses(work: Work) -> list[int]:
        """Where the parameters are, which of them are trained, and whose noise this process draws."""
        parameters = [p for group in work.parameters.groups for p in group["params"]]
        trained, addresses = map(_requires_grad, parameters), map(Tensor.data_ptr, locals_of(parameters))
        return [work.replicas.rank, *trained, *addresses]

    def _all_tensors(self, work: Work) -> Iterator[Any]:
        """Parameters, counters and state: whatever addresses were taken of."""
        parameters = work.parameters
        counters = (group[name] for group in parameters.groups for name in ("draws", "skipped"))
        state = chain.from_iterable(map(dict.values, parameters.state.values()))
        return chain(counters, *(group["params"] for group in parameters.groups), state)

    def _build(self, work: Work, trainable: list[tuple[int, int, Tensor]]) -> Kernels:
        statistics, groups, state = work.samples.statistics, work.parameters.groups, work.parameters.state
        device, entries, self._waiting = trainable[0][2].device, [], {}
        self._count_on(device, groups)
        squares = [numbers.squares for numbers in self._coefficients(work)]
        for index, number, p in trainable:
            new = p not in state
            own = work.equations.state_of(p, groups[number])
            if new and device.type == "cpu":
                self._waiting[p] = state.pop(p)
            own.update(laid_out(own, p.detach()))
            kept = {"p": p.detach(), "buffer": statistics.keep(p).buffer, **own}
            tensors = {name: local(t) for name, t in kept.items()}
            entries.append(Entry(tensors, number, index, squares[number], first_index(p)))
        self._parameters = [p for _, _, p in trainable]
        self._buffers = {p: statistics.kept[p].buffer for p in self._parameters}
        kernels = kernels_for(device)
        assert not isinstance(kernels, str), kernels
        return kernels(entries, self._marks(work))

    def _count_on(self, device: torch.device, groups: Sequence[Group]) -> None:
        """Let counters of draws and skipped steps be on the device."""
        self._told = int(groups[0]["skipped"])
        self._report = torch.zeros((), dtype=torch.int64, pin_memory=device.type == "cuda")
        for group in groups:
            for name in ("draws", "skipped"):
                group[name] = torch.as_tensor(group[name], dtype=torch.int64, device=device).clone()

    @staticmethod
    def _marks(work: Work) -> list[Marks]:
        sample = work.replicas.rank
        return [(g["seed"], sample, g["draws"], g["skipped"]) for g in work.parameters.groups]

    def newly_skipped(self, parameters: Parameters) -> bool:
        """Whether steps were skipped without a warning so far; the host may learn of them later."""
        skipped = parameters.groups[0]["skipped"]
        if self._report is None or not isinstance(skipped, Tensor):
            return False
        known = int(self._report if skipped.is_cuda else skipped)
        more, self._told = known > self._told, max(known, self._told)
        self._report.copy_(skipped, non_blocking=True)
        return more

    def _show_state(self, work: Work) -> None:
        """Parameters have state from their first update on."""
        shown = [p for p, state in self._waiting.items() if state["step"] > 0]
        for p in shown:
            work.parameters.state[p] = self._waiting.pop(p)
        if shown:
            self._seen = list(self._all_tensors(work))


@dataclass(frozen=True)
class _Restore:
    """Puts means back by kernels; with `keep`, samples go where those were."""

    launcher: Kernels
    keep: bool

    def __call__(self, means: Means, back: list[int]) -> None:
        self.launcher.restore(back, keep=self.keep)
        increment_version(locals_of(means) if self.keep else list(means))  # samples of shards are kept
