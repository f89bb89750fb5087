"""Statistics of the samples of one step: products of noise and gradient.

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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from posterity.optim._distributed import Replicas, local, on_all, sharded
from posterity.optim.kernels import Numbers, Views, largest, like, require_dense
from posterity.trees import state_dtype


@dataclass
class KeptGradient:
    """What is kept about one parameter from its first sample to the step."""

    buffer: Tensor  # the mean while a sample is in place, the last sample otherwise
    product: Tensor | None = None  # the stored part of D
    gradients: Tensor | None = None  # sum of the gradients of closed estimates
    before: Tensor | None = None  # the gradient that was there when the sample was put in place
    version: int = 0  # of that gradient, then
    norm: Tensor | None = None  # of p.grad when the last sample was taken away
    earlier: Tensor | None = None  # Σ noise · gradient of the sample in place with the gradient before it

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
        self.product = self.gradients = self.before = self.norm = self.earlier = None


@dataclass
class Statistics:
    """Gathers the products of noise and gradient, and how gradients were scaled since."""

    per_rank: bool = False  # whether products are taken inside the backward pass
    watched: bool = False  # whether totals and norms are measured for every sample, which costs a pass over gradients
    totals: list[Tensor] = field(default_factory=list)  # of each sample since the last step, if watched: Σ noise · its
    # own gradient over all weights (of this process), before anybody scales the gradient
    kept: dict[Tensor, KeptGradient] = field(default_factory=dict)
    finished: int = 0  # samples to learn from since the last step
    closed: int = 0  # estimates that zero_grad has ended inside a context
    compared: bool = False  # whether the gradients of replicas have been found equal
    hooks: list[Any] = field(default_factory=list)  # that take products
    measured: bool = False  # whether the gradients of the sample in place have been measured

    # ── before, while and after a sample is in place ─────────────────────────────────────────────────────────────

    def keep(self, p: Tensor) -> KeptGradient:
        """What is kept about a parameter, which may have another type or layout than at its last sample."""
        here = local(p.detach())
        if p not in self.kept:
            self.kept[p] = KeptGradient(here.clone())  # without a sample there is no noise
        kept = self.kept[p]
        kept.buffer = like(here, kept.buffer)
        for name, t in kept.sums().items():
            setattr(kept, name, like(here, t, state_dtype(here.dtype)))
        return kept

    def buffer(self, p: Tensor, train: bool, summed: bool = False) -> Tensor:
        """Where the mean of a parameter is to be saved when the next sample is put in its place.

        Args:
            p: The parameter.
            train: Whether that sample is one to learn from.
            summed: Whether fused kernels take the product with the noise of this sample less that of the next.
        """
        if not train:
            return torch.empty_like(local(p), requires_grad=False)
        kept = self.keep(p)
        if p.grad is not None:
            self.rescale(p)
            if self.finished and not self.per_rank and not summed:
                kept.accumulate(kept.buffer, p, p.grad)
        return kept.buffer

    def sampled(self, means: Mapping[Tensor, Tensor], train: bool, summed: bool = False) -> None:
        """A sample has been put in place of each parameter, and its mean into the buffer; see `buffer`."""
        self.measured = False
        for p, mean in means.items() if train else ():
            kept = self.kept[p]
            if p.grad is not None:
                kept.before, kept.version = p.grad, p.grad._version
            if self.watched and not self.per_rank:
                kept.earlier = None if p.grad is None else dot(p, mean, p.grad)
            if self.per_rank:
                self.hooks.append(p.register_hook(partial(_take_product, kept, p.detach(), self.watched)))
            elif p.grad is not None and not summed:
                kept.accumulate(mean, p, p.grad)  # minus the new noise

    def cleared(self, means: Iterable[Tensor]) -> bool:
        """Whether the gradients were cleared that were there before the sample."""
        return any(self._cleared(p) for p in means)

    def left(self, means: Iterable[Tensor], train: bool) -> None:
        """The sample is no longer the one that gradients come from."""
        while self.hooks:
            self.hooks.pop().remove()
        for p in means if train else ():
            self.kept[p].before = None

    def measure(self, means: Mapping[Tensor, Tensor]) -> None:
        """Remember how large the gradients beside stored products are, before anybody scales them."""
        if self.watched:
            self._add_total(means)
        for p in means:
            kept = self.kept[p]
            wanted = p.grad is not None and (kept.product is not None or self.watched)
            kept.norm = norm(p.grad) if wanted and p.grad is not None else None
        self.measured = True

    def _add_total(self, means: Mapping[Tensor, Tensor]) -> None:
        parts = []
        for p, mean in means.items():
            kept = self.kept[p]
            if self.per_rank and kept.earlier is not None:  # taken inside the backward pass
                parts.append(kept.earlier)
            elif not self.per_rank and p.grad is not None:
                with_all = dot(p, mean, p.grad)
                parts.append(with_all if kept.before is None or kept.earlier is None else with_all - kept.earlier)
            kept.earlier = None
        if parts:
            self.totals.append(torch.stack([part.to(parts[0]) for part in parts]).sum())

    def _cleared(self, p: Tensor) -> bool:
        # DistributedDataParallel may replace a gradient by a view of its buckets, but only after adding to it.
        before = self.kept[p].before
        return before is not None and p.grad is not before and before._version == self.kept[p].version

    @torch.no_grad()
    def close(self) -> bool:
        """End an estimate: its gradients are about to be cleared, and it will be averaged with the next ones.

        Returns:
            False where there is nothing to average, or nothing finite: then all is to be forgotten.
        """
        pending = [(p, kept, kept.before) for p, kept in self.kept.items() if kept.before is not None]
        if not self.finished or not all(bool(norm(before).isfinite()) for _, _, before in pending):
            return False
        for p, kept, before in pending:
            if not self.per_rank:
                kept.accumulate(p, kept.buffer, before)
            gradient = local(before).to(state_dtype(p.dtype))
            kept.gradients = gradient.clone() if kept.gradients is None else kept.gradients + gradient
            kept.before = None
        self.closed += 1
        return True

    def clear(self) -> None:
        """Drop what is stored about every parameter, but for the buffers."""
        self.totals = []
        for kept in self.kept.values():
            kept.forget()

    # ── at the step ──────────────────────────────────────────────────────────────────────────────────────────────

    def evidence(self, p: Tensor, estimates: int) -> tuple[Views, Numbers]:
        """What the update of a parameter needs: gradient, last sample and sums, and how they are scaled."""
        tensors = {} if p.grad is None else {"gradient": local(p.grad)}
        numbers: Numbers = {"estimates": float(estimates)} if estimates > 1 else {}
        if self.finished and p in self.kept:
            kept = self.kept[p]
            tensors |= kept.sums() if self.per_rank else {"sample": kept.buffer, **kept.sums()}
            numbers |= {"factor": self.factor(p)} if kept.product is not None else {}
        return tensors, numbers

    def has_gradient(self, p: Tensor) -> bool:
        """Whether a parameter has a gradient, or had one in an estimate that was closed."""
        kept = self.kept.get(p)
        return p.grad is not None or (kept is not None and kept.gradients is not None)

    def share(self, replicas: Replicas, parameters: Sequence[Tensor]) -> None:
        """Average what is stored beside each gradient over the replicas of a model.

        With shared noise and one sample nothing is: its product follows from the averaged gradient.

        Args:
            replicas: The processes.
            parameters: Those with gradients, the same everywhere.
        """
        several = self.finished > 1 or self.closed > 0
        kept = {p: self.kept[p] for p in parameters if p in self.kept and not sharded(p)}
        if replicas.count == 1 or not kept or not self.finished or not (several or self.per_rank):
            return
        if not self.compared:
            replicas.require_equal_gradients(kept)
            self.compared = True
        for name in ("product", "gradients") if self.closed else ("product",):
            replicas.average([k.stored(name) for k in kept.values()])

    def finite(self, sizes: Mapping[Tensor, float]) -> bool:
        """Whether all gradients and products are, here and on the other processes, and the gradients small enough.

        Args:
            sizes: The parameters, and the number that squares of the gradients of each are multiplied with.
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
def _take_product(kept: KeptGradient, sample: Tensor, watched: bool, gradient: Tensor) -> None:
    """Add noise times gradient for a gradient that is about to be accumulated."""
    kept.accumulate(sample, kept.buffer, gradient)
    if watched:
        total = dot(sample, kept.buffer, gradient)
        kept.earlier = total if kept.earlier is None else kept.earlier + total


def dot(sample: Tensor, mean: Tensor, gradient: Tensor) -> Tensor:
    """Σ (sample − mean) · gradient, in the precision of the optimizer's state."""
    require_dense(gradient)
    dtype = state_dtype(gradient.dtype)
    noise = local(sample.detach()).to(dtype) - local(mean).to(dtype)
    return torch.dot(noise.reshape(-1), local(gradient).to(dtype).reshape(-1))


def norm(gradient: Tensor) -> Tensor:
    """Euclidean norm (of the local part of a shard) in the precision of the optimizer's state."""
    require_dense(gradient)
    return torch.linalg.vector_norm(local(gradient), dtype=state_dtype(gradient.dtype))
