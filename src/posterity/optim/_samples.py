"""The sample in place of the mean, and what earlier samples of the same step left behind.

Within one step let sample k have noise nₖ = θₖ − m, and let Gₖ be the content of ``p.grad`` after its backward pass.
The optimizer needs D = Σₖ nₖ (Gₖ − Gₖ₋₁): each noise times the gradient that its own sample added. Instead of keeping
old gradients, the product is summed by parts, each term taken when sample k + 1 replaces sample k:

    D = Σ_{k<K} (nₖ − nₖ₊₁) Gₖ + n_K G_K

so one sample a step stores nothing, and the last term is read from ``p.grad`` when the step is taken. What clipping,
unscaling or averaging did to ``p.grad`` in the meantime is one factor, ‖p.grad now‖ / ‖p.grad then‖, and the stored
sum is multiplied by it.

Where each process draws its own samples, averaging over processes mixes the gradients of different samples in
``p.grad``. There each product is taken inside the backward pass, from the gradient that is about to be added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from posterity.errors import expected
from posterity.optim._distributed import local, on_all, sharded
from posterity.optim.kernels import Numbers, Views, largest, like, require_dense, swap
from posterity.trees import state_dtype

SKIPPED = (
    "a step was skipped because its gradients were NaN, infinite or too large for ess times their squares; "
    "`diagnostics()` counts them"
)
NOISELESS = (
    "step() took the gradients as gradients at the mean, so the Hessian does not move: open "
    "`sampled_params(train=True)`, pass a closure to step(), or `attach` the model"
)


@dataclass
class Kept:
    """What is kept about one parameter from its first sample to the step."""

    buffer: Tensor  # the mean while a sample is in place, the last sample otherwise
    product: Tensor | None = None  # the stored part of D
    gradients: Tensor | None = None  # sum of the gradients of closed estimates
    before: Tensor | None = None  # the gradient that was there when the sample was put in place
    version: int = 0  # of that gradient, then
    norm: Tensor | None = None  # of p.grad when the last sample was taken away

    def accumulate(self, a: Tensor, b: Tensor, gradient: Tensor) -> None:
        """Add (a − b) · gradient to the stored product."""
        require_dense(gradient)
        dtype = state_dtype(gradient.dtype)
        noise, gradient = local(a).to(dtype) - local(b).to(dtype), local(gradient).to(dtype)
        self.product = noise.mul_(gradient) if self.product is None else self.product.addcmul_(noise, gradient)

    def stored(self, name: str) -> Tensor:
        """One of the sums; zeros if nothing came here, where more may come from other samples or processes."""
        if getattr(self, name) is None:
            setattr(self, name, torch.zeros_like(self.buffer, dtype=state_dtype(self.buffer.dtype)))
        found: Tensor = getattr(self, name)
        return found

    def sums(self) -> dict[str, Tensor]:
        """The sums that the update needs beside the gradient and the last sample, where there are any."""
        sums = {"product": self.product, "gradients": self.gradients}
        return {name: t for name, t in sums.items() if t is not None}

    def forget(self) -> None:
        """Drop everything but the buffer."""
        self.product = self.gradients = self.before = self.norm = None


def exchanged(means: dict[Tensor, Tensor]) -> None:
    """Swap samples that are in place with their means."""
    swap([local(p.detach()) for p in means], list(means.values()))


@dataclass
class Samples:
    """Puts samples in place, takes them away exactly, and gathers the products of noise and gradient."""

    kept: dict[Tensor, Kept] = field(default_factory=dict)
    means: dict[Tensor, Tensor] = field(default_factory=dict)  # the means of the parameters that hold a sample
    train: bool = False  # whether the sample in place is one to learn from
    finished: int = 0  # samples to learn from since the last step
    closed: int = 0  # estimates that zero_grad has ended inside a context
    per_rank: bool = False  # whether products are taken inside the backward pass
    compared: bool = False  # whether the gradients of replicas have been found equal
    hooks: list[Any] = field(default_factory=list)  # that take them
    measured: bool = False  # whether the gradients of the sample in place have been measured
    passes: int = 0  # training passes of attached models that hold the sample and have not been differentiated
    differentiated: bool = False  # whether one has
    lazy: bool = False  # whether the last sample is one of fused kernels, which may draw it again and not store it
    fresh: bool = False  # whether the sample in place was put there ahead of its use

    def begin(self, train: bool, parameters: Sequence[Tensor]) -> bool:
        """Prepare for a sample, and say whether its noise is to be new.

        Earlier samples that left no gradient are forgotten. Shards that accumulate without communication show no
        gradient before the last pass, whose product has to be that of all: they keep their sample.
        """
        if self.per_rank and any(map(sharded, parameters)):
            raise expected("noise='per_rank'", "whole parameters on each process", "sharded ones")
        self.train = train
        if not self.finished or any(p.grad is not None for p in parameters):
            return True
        self.discard()
        return not any(map(sharded, parameters))

    def evidence(self, p: Tensor, estimates: int) -> tuple[Views, Numbers]:
        """What the update of a parameter needs to know: gradient, last sample and sums, and how they are scaled."""
        tensors = {} if p.grad is None else {"gradient": local(p.grad)}
        numbers: Numbers = {"estimates": float(estimates)} if estimates > 1 else {}
        if self.finished and p in self.kept:
            kept = self.kept[p]
            tensors |= kept.sums() if self.per_rank else {"sample": kept.buffer, **kept.sums()}
            numbers |= {"factor": self.factor(p)} if kept.product is not None else {}
        return tensors, numbers

    def keep(self, p: Tensor) -> Kept:
        """What is kept about a parameter, which may have another type or layout than at its last sample."""
        here = local(p.detach())
        if p not in self.kept:
            self.kept[p] = Kept(here.clone())  # without a sample there is no noise
        kept = self.kept[p]
        kept.buffer = like(here, kept.buffer)
        for name, t in kept.sums().items():
            setattr(kept, name, like(here, t, state_dtype(here.dtype)))
        return kept

    def buffer(self, p: Tensor, summed: bool = False) -> Tensor:
        """Where the mean of a parameter is to be saved when the next sample is put in its place.

        Args:
            p: The parameter.
            summed: Whether fused kernels take the product with the noise of this sample less that of the next.
        """
        if not self.train:
            return torch.empty_like(local(p), requires_grad=False)
        kept = self.keep(p)
        if p.grad is not None:
            self.rescale(p)
            if self.finished and not self.per_rank and not summed:
                kept.accumulate(kept.buffer, p, p.grad)
        return kept.buffer

    def replace(self, means: dict[Tensor, Tensor]) -> None:
        """Other weights are in place than before, with these means; of the old ones autocast may keep copies."""
        self.means = means
        torch.clear_autocast_cache()

    def hold(self, buffers: dict[Tensor, Tensor]) -> None:
        """A sample to learn from has been put in place by fused kernels, and each mean into the buffer."""
        self.replace(buffers)
        self.train, self.lazy = True, True
        self.passes, self.differentiated = 0, False

    def released(self) -> None:
        """Fused kernels have put the mean back."""
        self.replace({})
        self.finished += not self.fresh
        self.lazy, self.fresh = not self.fresh, False

    def placed(self, buffers: dict[Tensor, Tensor], summed: bool = False) -> None:
        """A sample has been put in place of each parameter, and its mean into the buffer; see `buffer`."""
        self.replace(buffers)
        self.measured, self.passes, self.differentiated = False, 0, False
        if not self.train:
            return
        try:
            for p, buffer in buffers.items():
                kept = self.kept[p]
                if p.grad is not None:
                    kept.before, kept.version = p.grad, p.grad._version
                if self.per_rank:
                    self.hooks.append(p.register_hook(partial(_take_product, kept, p.detach())))
                elif p.grad is not None and not summed:
                    kept.accumulate(buffer, p, p.grad)  # minus the new noise
        except BaseException:
            self.take_away()
            self.discard()
            raise

    @torch.no_grad()
    def take_away(self, exchange: Callable[[dict[Tensor, Tensor]], None] = exchanged) -> None:
        """Put the mean back, bit for bit; a sample to learn from counts from here on."""
        if self.train and any(self._cleared(p) for p in self.means):
            self.close()
        if self.train and not self.measured:
            self.measure()
        means = self.means
        self.replace({})
        while self.hooks:
            self.hooks.pop().remove()
        if self.train:
            for p in means:
                self.kept[p].before = None
            exchange(means)
        else:
            for p, mean in means.items():
                local(p).copy_(mean)
        self.finished += self.train

    def measure(self) -> None:
        """Remember how large the gradients beside stored products are, before anybody scales them."""
        for p in self.means:
            kept = self.kept[p]
            kept.norm = norm(p.grad) if p.grad is not None and kept.product is not None else None
        self.measured = True

    def _cleared(self, p: Tensor) -> bool:
        # DistributedDataParallel may replace a gradient by a view of its buckets, but only after adding to it.
        before = self.kept[p].before
        return before is not None and p.grad is not before and before._version == self.kept[p].version

    @torch.no_grad()
    def close(self) -> None:
        """End an estimate: its gradients are about to be cleared, and it will be averaged with the next ones."""
        pending = [(p, kept, kept.before) for p, kept in self.kept.items() if kept.before is not None]
        if not self.finished or not all(bool(norm(before).isfinite()) for _, _, before in pending):
            self.discard()
            return
        for p, kept, before in pending:
            if not self.per_rank:
                kept.accumulate(p, kept.buffer, before)
            gradient = local(before).to(state_dtype(p.dtype))
            kept.gradients = gradient.clone() if kept.gradients is None else kept.gradients + gradient
            kept.before = None
        self.closed += 1

    def discard(self) -> None:
        """Forget all statistics; a sample in place stays there."""
        if not self.lazy:  # otherwise nothing is stored
            for kept in self.kept.values():
                kept.forget()
        self.finished = self.closed = 0
        self.lazy = self.lazy and bool(self.means)

    def finite(self, sizes: Mapping[Tensor, float]) -> bool:
        """Whether all gradients and products are, here and on the other processes, and the gradients small enough.

        Args:
            sizes: The parameters, and the effective sample size of each.
        """
        given = [(p.grad, max(ess, 1.0) ** 0.5 / largest(state_dtype(p.dtype))) for p, ess in sizes.items()]
        given += [(self.kept[p].product, 0.0) for p in sizes if p in self.kept]  # infinity times 0 is NaN
        found = [(t, unit) for t, unit in given if t is not None]
        if not found:
            return True
        norms = torch._foreach_mul([norm(t) for t, _ in found], [unit for _, unit in found])
        return on_all((torch.stack([n.to(norms[0]) for n in norms]) < 1).all(), sizes)

    def factor(self, p: Tensor) -> Tensor | float:
        """What happened to p.grad since the last sample was taken away, as one factor."""
        kept = self.kept[p]
        if kept.norm is None or p.grad is None:
            return 1.0
        return torch.where(kept.norm > 0, norm(p.grad) / kept.norm, 1.0)

    def rescale(self, p: Tensor) -> None:
        """Let the sums follow what happened to p.grad since the last sample was taken away."""
        kept = self.kept[p]
        if kept.norm is not None:
            factor = self.factor(p)
            for t in kept.sums().values():
                if t.device.type != "cpu" or factor != 1:  # elsewhere it costs more to ask
                    t.mul_(factor)
            kept.norm = None


@torch.no_grad()
def _take_product(kept: Kept, sample: Tensor, gradient: Tensor) -> None:
    """Add noise times gradient for a gradient that is about to be accumulated."""
    kept.accumulate(sample, kept.buffer, gradient)


def norm(gradient: Tensor) -> Tensor:
    """Euclidean norm (of the local part of a shard) in the precision of the optimizer's state."""
    require_dense(gradient)
    return torch.linalg.vector_norm(local(gradient), dtype=state_dtype(gradient.dtype))
