"""The sample in place of the mean, and what earlier samples of the same step left behind.

Within one step let sample k have noise nₖ = θₖ − m, and let Gₖ be the content of ``p.grad`` after its backward pass.
The optimizer needs D = Σₖ nₖ (Gₖ − Gₖ₋₁): each noise times the gradient that its own sample added. Instead of keeping
old gradients, the product is summed by parts, each term taken when sample k + 1 replaces sample k:

    D = Σ_{k<K} (nₖ − nₖ₊₁) Gₖ + n_K G_K

so one sample a step stores nothing, and the last term is read from ``p.grad`` when the step is taken. What clipping,
unscaling or averaging did to ``p.grad`` in the meantime is one factor, ‖p.grad now‖ / ‖p.grad then‖, and the stored
sum is multiplied by it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from posterity.errors import expected
from posterity.optim.kernels import swap
from posterity.trees import state_dtype


@dataclass
class Kept:
    """What is kept about one parameter from its first sample to the step."""

    buffer: Tensor  # the mean while a sample is in place, the last sample otherwise
    product: Tensor | None = None  # the stored part of D
    gradients: Tensor | None = None  # sum of the gradients of closed estimates
    before: Tensor | None = None  # the gradient that was there when the sample was put in place
    norm: Tensor | None = None  # of p.grad when the last sample was taken away

    def accumulate(self, a: Tensor, b: Tensor, gradient: Tensor) -> None:
        """Add (a − b) · gradient to the stored product."""
        require_dense(gradient)
        dtype = state_dtype(gradient.dtype)
        term = (a.to(dtype) - b.to(dtype)).mul_(gradient)
        self.product = term if self.product is None else self.product.add_(term)

    def tensors(self) -> dict[str, Tensor]:
        """What the update needs: the last sample, and the sums where there are any."""
        sums = {"product": self.product, "gradients": self.gradients}
        return {"sample": self.buffer, **{name: t for name, t in sums.items() if t is not None}}

    def forget(self) -> None:
        """Drop everything but the buffer."""
        self.product = self.gradients = self.before = self.norm = None


@dataclass
class Samples:
    """Puts samples in place, takes them away exactly, and gathers the products of noise and gradient."""

    kept: dict[Tensor, Kept] = field(default_factory=dict)
    means: dict[Tensor, Tensor] = field(default_factory=dict)  # the means of the parameters that hold a sample
    train: bool = False  # whether the sample in place is one to learn from
    finished: int = 0  # samples to learn from since the last step
    closed: int = 0  # estimates that zero_grad has ended inside a context

    def buffer(self, p: Tensor) -> Tensor:
        """Where the mean of a parameter is to be saved when the next sample is put in its place."""
        if not self.train:
            return torch.empty_like(p, requires_grad=False)
        if p not in self.kept:
            self.kept[p] = Kept(torch.empty_like(p, requires_grad=False))
        kept = self.kept[p]
        if p.grad is not None:
            self._rescale(p, kept)
            if self.finished:
                kept.accumulate(kept.buffer, p, p.grad)
        return kept.buffer

    def placed(self, buffers: dict[Tensor, Tensor]) -> None:
        """A sample has been put in place of each parameter, and its mean into the buffer."""
        self.means = buffers
        if not self.train:
            return
        try:
            for p, buffer in buffers.items():
                if p.grad is not None:
                    self.kept[p].accumulate(buffer, p, p.grad)  # minus the new noise
                    self.kept[p].before = p.grad
        except BaseException:
            self.take_away()
            self.discard()
            raise

    @torch.no_grad()
    def take_away(self) -> None:
        """Put the mean back, bit for bit; a sample to learn from counts from here on."""
        if self.train and any(self._cleared(p) for p in self.means):
            self.close()
        means, self.means = self.means, {}
        if self.train:
            for p in means:
                kept = self.kept[p]
                kept.before = None
                kept.norm = norm(p.grad) if p.grad is not None and kept.product is not None else None
            swap([p.detach() for p in means], list(means.values()))
        else:
            for p, mean in means.items():
                p.copy_(mean)
        self.finished += self.train

    def _cleared(self, p: Tensor) -> bool:
        before = self.kept[p].before
        return before is not None and p.grad is not before

    @torch.no_grad()
    def close(self) -> None:
        """End an estimate: its gradients are about to be cleared, and it will be averaged with the next ones."""
        pending = [(p, kept, kept.before) for p, kept in self.kept.items() if kept.before is not None]
        if not self.finished or not all(bool(norm(before).isfinite()) for _, _, before in pending):
            self.discard()
            return
        for p, kept, before in pending:
            kept.accumulate(p, kept.buffer, before)
            gradient = before.to(state_dtype(p.dtype))
            kept.gradients = gradient.clone() if kept.gradients is None else kept.gradients + gradient
            kept.before = None
        self.closed += 1

    def discard(self) -> None:
        """Forget all statistics; a sample in place stays there."""
        for kept in self.kept.values():
            kept.forget()
        self.finished = self.closed = 0

    def factor(self, p: Tensor) -> Tensor | float:
        """What happened to p.grad since the last sample was taken away, as one factor."""
        kept = self.kept[p]
        if kept.norm is None or p.grad is None:
            return 1.0
        return torch.where(kept.norm > 0, norm(p.grad) / kept.norm, 1.0)

    def _rescale(self, p: Tensor, kept: Kept) -> None:
        if kept.norm is not None:
            factor = self.factor(p)
            kept.product = None if kept.product is None else kept.product * factor
            kept.gradients = None if kept.gradients is None else kept.gradients * factor
            kept.norm = None


def require_dense(gradient: Tensor) -> None:
    """Raise unless the gradient is an ordinary tensor."""
    if gradient.layout is not torch.strided:
        raise expected("gradient", "a dense tensor; sparse gradients are not supported", gradient.layout)


def norm(gradient: Tensor) -> Tensor:
    """Euclidean norm in the precision of the optimizer's state."""
    return torch.linalg.vector_norm(gradient, dtype=state_dtype(gradient.dtype))
