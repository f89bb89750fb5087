"""The fast way of an optimizer whose equations exist as fused kernels, which draw its samples and take its steps.

Counters live on the device, so that nothing waits for it: a step with NaN or infinite gradients is skipped there, and
said when the host comes to know. Of several samples a step each is written down, and its product with the gradient is
summed when the next one is drawn. Averages of several estimates, products of each process and steps of shards are left
to tensor operations.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from posterity.optim._distributed import first_index, local, sharded
from posterity.optim._samples import SKIPPED, exchanged, norm
from posterity.optim.kernels import Entry, Kernels, Piece, average, kernels_for, laid_out, require_dense, usable

if TYPE_CHECKING:
    from posterity.optim._variational import VariationalOptimizer


class FastPath:
    """Samples and steps of one optimizer by fused kernels, wherever they can do it."""

    def __init__(self, optimizer: VariationalOptimizer) -> None:
        self.ahead = False  # whether a step puts the next sample in place
        self.lingers = False  # whether a sample stays in place from the end of its context to the step
        self._optimizer = optimizer
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

    def put_sample(self, fresh: bool) -> bool:
        """Put a sample to learn from in place; False where that is left to tensor operations.

        Args:
            fresh: Whether it is a new one, and not the last one again.
        """
        samples = self._optimizer._samples
        if not self._possible():
            return False
        alone = not (samples.lazy or samples.finished or samples.closed or samples.per_rank)
        self.store()
        launcher = self._ready()
        if launcher is None:
            return False
        self._set_numbers(launcher)
        if alone and not any(map(sharded, self._parameters)):
            self._remember_gradients()
            launcher.draw(fresh=fresh)
            samples.hold(self._buffers)
        else:
            summed = samples.finished > 0 and not samples.per_rank
            self._buffers = {p: samples.buffer(p, summed) for p in self._parameters}
            launcher.draw(*(self._sums() if summed else ()), fresh=fresh)
            samples.placed(self._buffers, summed)
        increment_version([local(p) for p in self._parameters])
        return True

    def _sums(self) -> tuple[list[Tensor | None], list[Tensor | None]]:
        """The gradients, and the sums of products beside them."""
        kept, gradients = self._optimizer._samples.kept, [p.grad for p in self._parameters]
        pairs = zip(self._parameters, gradients, strict=True)
        products = [None if g is None else kept[p].stored("product") for p, g in pairs]
        return [None if g is None else local(g) for g in gradients], products

    @torch.no_grad()
    def take_away(self) -> bool:
        """Put the mean back; False if the sample in place is not one of these."""
        samples = self._optimizer._samples
        if not (samples.lazy and samples.train and samples.means) or self._launcher is None:
            return False
        if self._unmoved(thorough=False):
            self._launcher.restore()
        else:  # which would put it where the parameters were
            exchanged(samples.means)
            self._launcher = None
            self.look_again()
        increment_version(self._parameters)
        samples.released()
        self._subtract_gradients()
        if self._launcher is None:
            self.store()
        return True

    def step(self) -> bool:
        """Take a step from one sample, in place or just taken away; False where that is left to tensor operations."""
        samples = self._optimizer._samples
        if samples.fresh or not samples.lazy or samples.finished + bool(samples.means) != 1 or samples.closed:
            return False
        if not self._unmoved(thorough=self.ahead) or self._widths() != self._drawn:  # the sample is one of others
            self.take_away()
            self.store()
            return False
        launcher, gradients = self._launcher, [p.grad for p in self._parameters]
        if self._accumulated():
            self.take_away()
            return False
        if launcher is None or all(g is None for g in gradients):
            self.store()
            return False
        self._set_numbers(launcher)
        launcher.step(gradients, held=bool(samples.means), ahead=self.ahead)
        self._after_step()
        samples.means = {}
        samples.discard()
        if self.ahead:
            samples.hold(self._buffers)
            samples.fresh = True
        return True

    def update(self, parameters: Sequence[Tensor], estimates: int) -> bool:
        """Take a step from the sums of several samples; False where that is left to tensor operations.

        Args:
            parameters: Those with finite gradients.
            estimates: How many gradients their sums are averaged over.
        """
        samples, launcher = self._optimizer._samples, self._launcher
        if launcher is None or any(map(sharded, parameters)) or not self._unmoved() or self._widths() != self._drawn:
            return False  # kernels would not draw the last sample again
        averaged = estimates > 1 or samples.closed > 0
        if averaged and any(p.dtype != torch.float32 for p in parameters):
            return False  # kernels would have the averaged gradients rounded
        if not samples.finished or (samples.per_rank and any(samples.kept[p].product is None for p in parameters)):
            return False  # some gradients are at the mean
        self._set_numbers(launcher)
        if averaged or samples.per_rank:
            evidence = {p: samples.evidence(p, estimates) for p in parameters}
            pieces = {p: Piece({"p": p.detach(), **tensors}, numbers) for p, (tensors, numbers) in evidence.items()}
            found = {p: average(piece) for p, piece in pieces.items()}
            launcher.step(*zip(*(found.get(p, (None, None)) for p in self._parameters), strict=True), sampled=False)
        else:
            for p in parameters:
                samples.rescale(p)
            launcher.step(*self._sums())
        self._after_step()
        return True

    def exchange(self, means: dict[Tensor, Tensor]) -> None:
        """Put means back, and samples where those were."""
        if self._launcher is None or means is not self._buffers or not self._unmoved(thorough=False):
            exchanged(means)
            return
        self._launcher.restore(keep=True)
        increment_version([local(p) for p in means])

    def _after_step(self) -> None:
        increment_version(self._parameters)
        self._say_what_was_skipped()
        self._show_state()

    def use(self) -> bool:
        """Begin to use the sample that the last step has put in place, if there is one."""
        samples = self._optimizer._samples
        if not samples.fresh:
            return False
        samples.fresh = False
        for group in self._optimizer.param_groups:
            group["draws"] += 1
        return True

    @property
    def may_stay(self) -> bool:
        """Whether a sample may stay in place until the step, where no gradient before it has to be taken out."""
        return self._optimizer._samples.lazy and not self._accumulated()

    def linger(self) -> bool:
        """Leave the sample of a context that ends in place until the step, where that is asked for and may be."""
        stays = self.lingers and self.may_stay
        self._optimizer._samples.differentiated |= stays  # so that an attached model draws another one
        return stays

    def look_again(self) -> None:
        """Let the next sample look for all tensors anew: some are not what they were."""
        self._places = []

    def forget_gradients(self) -> None:
        """All gradients are being cleared, and with them a sample that only waits for its step."""
        self._before = {}
        samples, used = self._optimizer._samples, not self._optimizer._context_open
        if used and samples.lazy and samples.means and samples.passes <= 0 and not samples.fresh:
            self.take_away()
            samples.discard()

    def _remember_gradients(self) -> None:
        """Keep a copy of gradients that are there before the sample: they will be cleared, or added to."""
        earlier = {p: p.grad for p in self._parameters if p.grad is not None}
        for gradient in earlier.values():
            require_dense(gradient)
        copies = torch._foreach_add(list(earlier.values()), 0) if earlier else []
        self._before = {p: (g, copy) for (p, g), copy in zip(earlier.items(), copies, strict=True)}

    def _accumulated(self) -> list[tuple[Tensor, Tensor]]:
        return [(p, copy) for p, (gradient, copy) in self._before.items() if p.grad is gradient]

    def _subtract_gradients(self) -> None:
        """Take earlier gradients that were added to out of the product of noise and gradient, and so store it."""
        pending, self._before = self._accumulated(), {}
        if pending and self._optimizer._samples.lazy:
            self.store()
            for p, copy in pending:
                kept = self._optimizer._samples.kept[p]
                kept.accumulate(p, kept.buffer, copy)
                kept.norm = None if p.grad is None else norm(p.grad)

    def _possible(self) -> bool:
        optimizer, (group, p) = self._optimizer, next(self._optimizer._parameters())
        if optimizer.fused is False or not optimizer.constants(group):
            return False
        kernels = kernels_for(p.device)
        if optimizer.fused and isinstance(kernels, str):
            optimizer._warn(f"fused=True has no effect: {kernels}")
        return not isinstance(kernels, str)

    def store(self) -> None:
        """Write the last sample down, for whoever needs it beside the next one."""
        samples = self._optimizer._samples
        if samples.lazy and not samples.means and self._launcher is not None:
            self._launcher.draw(fresh=False, keep=True)
        samples.lazy = samples.lazy and bool(samples.means)

    def _trainable(self) -> list[tuple[int, int, Tensor]]:
        groups = enumerate(self._optimizer.param_groups)
        every = ((number, p) for number, group in groups for p in group["params"])
        return [(index, number, p) for index, (number, p) in enumerate(every) if p.requires_grad]

    def _ready(self) -> Kernels | None:
        """The kernels, set up anew if a tensor is another one than before."""
        if not self._unmoved():
            trainable = self._trainable()
            self._launcher = None
            here = [local(p) for _, _, p in trainable if local(p).numel() or not sharded(p)]
            if self._possible() and usable(here):
                self._launcher = self._build(trainable)
            self._places, self._seen = self._addresses(), list(self._all_tensors())
        return self._launcher

    def _set_numbers(self, launcher: Kernels) -> None:
        groups = self._optimizer.param_groups
        launcher.table.set_numbers([self._optimizer.constants(group) for group in groups])
        self._drawn = self._widths()
        for number, group in enumerate(groups):
            if isinstance(group["lr"], Tensor):
                launcher.table.scale_lr(number, group["lr"])

    def _widths(self) -> list[Any]:
        return [(group["ess"], group["weight_decay"]) for group in self._optimizer.param_groups]

    def _unmoved(self, thorough: bool = True) -> bool:
        """Whether the tensors are those whose addresses the kernels have.

        Args:
            thorough: Whether to look at the state as well, and not at the addresses of the parameters alone.
        """
        if self._addresses() != self._places:
            return False
        none = object()
        pairs = chain(self._all_tensors(), (none,)), chain(self._seen, (none,))
        return not thorough or all(map(operator.is_, *pairs))

    def _addresses(self) -> list[int]:
        """Where the parameters are, and whose noise this process draws."""
        groups = self._optimizer.param_groups
        addresses = [local(p).data_ptr() if p.requires_grad else 0 for group in groups for p in group["params"]]
        return [self._optimizer._replicas.rank, *addresses]

    def _all_tensors(self) -> Iterator[Any]:
        """Parameters, counters and state: whatever addresses were taken of."""
        groups = self._optimizer.param_groups
        counters = (group[name] for group in groups for name in ("draws", "skipped"))
        state = chain.from_iterable(map(dict.values, self._optimizer.state.values()))
        return chain(counters, *(group["params"] for group in groups), state)

    def _build(self, trainable: list[tuple[int, int, Tensor]]) -> Kernels:
        optimizer, samples = self._optimizer, self._optimizer._samples
        device, entries, self._waiting = trainable[0][2].device, [], {}
        self._told = int(optimizer.param_groups[0]["skipped"])
        for group in optimizer.param_groups:
            for name in ("draws", "skipped"):
                group[name] = torch.as_tensor(group[name], dtype=torch.int64, device=device).clone()
        for index, number, p in trainable:
            group = optimizer.param_groups[number]
            new = p not in optimizer.state
            state = optimizer._state_of(p, group)
            if new and device.type == "cpu":
                self._waiting[p] = optimizer.state.pop(p)
            state.update(laid_out(state, p.detach()))
            kept = {"p": p.detach(), "buffer": samples.keep(p).buffer, **state}
            tensors = {name: local(t) for name, t in kept.items()}
            entries.append(Entry(tensors, number, index, group.get("hess_approx") == "gradsq", first_index(p)))
        self._parameters = [p for _, _, p in trainable]
        self._buffers = {p: samples.kept[p].buffer for p in self._parameters}
        self._report = torch.zeros((), dtype=torch.int64, pin_memory=device.type == "cuda")
        kernels = kernels_for(device)
        assert not isinstance(kernels, str), kernels
        sample = optimizer._replicas.rank
        return kernels(entries, [(g["seed"], sample, g["draws"], g["skipped"]) for g in optimizer.param_groups])

    def _say_what_was_skipped(self) -> None:
        skipped = self._optimizer.param_groups[0]["skipped"]
        assert self._report is not None
        known = self._report if skipped.is_cuda else skipped
        if known > self._told:
            self._optimizer._warn(SKIPPED)
            self._told = int(known)
        self._report.copy_(skipped, non_blocking=True)

    def _show_state(self) -> None:
        """Parameters have state from their first update on."""
        shown = [p for p, state in self._waiting.items() if state["step"] > 0]
        for p in shown:
            self._optimizer.state[p] = self._waiting.pop(p)
        if shown:
            self._seen = list(self._all_tensors())
