"""Optimizers that differentiate twice: at a first point, then at the mean moved uphill by what was found there."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from posterity.errors import InvalidInput
from posterity.optim._passes import IsolatedGradients
from posterity.optim.engine import Attachment, Group, VariationalOptimizer, norm
from posterity.optim.engine._lifecycle import surely
from posterity.optim.kernels import Numbers, Views

Closure = Callable[[], Any]
UNPAIRED = (
    "step() found the gradients of a first pass without a second one, and learns nothing from them: differentiate "
    "again in `perturbed_params()` before each step, or pass a closure to step()"
)


class TwoPass(VariationalOptimizer):
    """The two passes of a step, as contexts or closures; a subclass defines the ascent step (`ascent`).

    Pairs of passes are averaged. One pair for each part of a batch is m-sharpness:

        for x, y in parts:
            with optimizer.sampled_params(train=True):
                loss(x, y).backward()
            with optimizer.perturbed_params():
                loss(x, y).backward()
        optimizer.step()

    The gradients of first passes are kept apart from `.grad`, which holds the sum over second passes alone; clipping
    and unscaling act on it as ever. A GradScaler's factor on the first pass is taken out by `perturbed_params(scaler)`.
    """

    shards = False

    def _forget_transients(self) -> None:
        super()._forget_transients()
        self._discard_passes()

    def _discard_passes(self) -> None:
        self._first: dict[Tensor, Tensor] = {}  # gradients of a first pass that waits for its second
        self._sizes: dict[Tensor, Tensor] = {}  # sums of |g| over first passes
        self._pairs = 0

    @abstractmethod
    def ascent(self, gradients: dict[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        """The step uphill from the mean, for the gradients of a first pass."""

    @contextmanager
    def sampled_params(self, train: bool = False) -> Iterator[None]:
        """The first pass; without `train`, a sample to predict with."""
        if not train:
            with super().sampled_params(train):
                yield
            return
        self._apart = IsolatedGradients(self._trained())
        with self._apart, super().sampled_params(train):
            yield
        self._first = self._apart.found
        self._samples.discard()

    @contextmanager
    def perturbed_params(self, scaler: torch.amp.GradScaler | None = None) -> Iterator[None]:
        """The second pass: hold the mean moved uphill in the parameters while the context is open.

        Should a gradient of the first pass be infinite or NaN, all parameters are NaN in the second, so that its
        gradients are too, and the step is skipped by scaler and optimizer alike.

        Args:
            scaler: The scaler that multiplied the loss of the first pass.
        """
        self._recover()
        if self._samples.context_open:
            raise InvalidInput("perturbed_params: expected no other context to be open, got a nested one")
        if not self._first:
            raise InvalidInput("perturbed_params: expected a first pass in `sampled_params(train=True)`, got none")
        scale = 1.0 if scaler is None else scaler.get_scale()
        first = dict(zip(self._first, torch._foreach_div(list(self._first.values()), scale), strict=True))
        means = dict(zip(first, torch._foreach_mul([p.detach() for p in first], 1.0), strict=True))
        try:
            self._samples.context_open = True
            self._go_uphill(first)
            self._apart = IsolatedGradients(self._trained())
            with self._apart:
                yield
            self._come_back(means)
        except BaseException:  # which may have come while the means were put back
            self._samples.broken = True
            surely(partial(self._come_back, means))
            raise
        self._apart.add()
        with torch.no_grad():
            sizes = dict(zip(first, torch._foreach_abs(list(first.values())), strict=True))
            self._sizes |= {p: size + self._sizes[p] if p in self._sizes else size for p, size in sizes.items()}
        self._pairs += 1

    @torch.no_grad()
    def _go_uphill(self, gradients: dict[Tensor, Tensor]) -> None:
        whole = 1 + 0.0 * joint_norm(gradients.values())  # NaN unless all gradients are finite
        torch._foreach_add_(list(gradients), scaled(list(self.ascent(gradients).values()), whole))
        torch.clear_autocast_cache()  # of the weights of the first pass

    @torch.no_grad()
    def _come_back(self, means: dict[Tensor, Tensor]) -> None:
        torch._foreach_copy_(list(means), list(means.values()))
        torch.clear_autocast_cache()
        self._first, self._samples.context_open = {}, False
        self._samples.broken = False

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, and outside a context also what first passes found."""
        super().zero_grad(set_to_none)
        if not self._samples.context_open:
            self._discard_passes()
        elif not self._pairs:
            self._apart.drop()

    @torch._disable_dynamo  # type: ignore[attr-defined]
    @torch.no_grad()
    def step(self, closure: Closure | Sequence[Closure] | None = None) -> Any:
        """Take a step from the second passes; with closures (one, or one for each part of a batch), make both first.

        Returns:
            The mean loss of the first passes, or None without a closure.
        """
        closures = closure if isinstance(closure, Sequence) else [] if closure is None else [closure]
        losses = [self._both_passes(evaluate) for evaluate in closures]
        if self._first:
            self._warn(UNPAIRED)
        super().step()
        return sum(losses) / len(losses) if losses and all(loss is not None for loss in losses) else None

    def _both_passes(self, closure: Closure) -> Any:
        if not self._pairs:
            super().zero_grad()
        with self.sampled_params(train=True), torch.enable_grad():
            loss = closure()
        if self._first:  # a closure without gradients changes nothing, as everywhere in torch
            with self.perturbed_params(), torch.enable_grad():
                closure()
        return loss

    def attach(self, model: nn.Module, *, ahead: bool = False) -> Attachment:
        """Not possible: training code with one backward pass a step cannot make two."""
        raise InvalidInput(f"attach: expected an optimizer with one backward pass a step, got {type(self).__name__}")

    def observe(self, p: Tensor, tensors: Views, options: Any, numbers: Numbers) -> None:
        numbers["pairs"] = float(max(self._pairs, 1))
        if p in self._sizes:
            tensors["sizes"] = self._sizes[p].to(tensors["momentum"].dtype)

    def _skip(self) -> None:
        super()._skip()
        self._discard_passes()

    def _say_if_noiseless(self, ready: list[tuple[Group, Tensor]]) -> None:
        if not self._pairs and any(group["lr"] != 0 for group, _ in ready):
            self._warn("step() took the gradients as gradients at the mean, without a second pass uphill")
        self._discard_passes()


def scaled(tensors: list[Tensor] | tuple[Tensor, ...], factor: Tensor) -> list[Tensor]:
    """Each tensor times one number, in a single launch where they share a device."""
    if len({t.device for t in tensors}) == 1:
        return list(torch._foreach_mul(tensors, factor.to(tensors[0].device)))
    return [t * factor.to(t) for t in tensors]


def joint_norm(gradients: Iterable[Tensor]) -> Tensor:
    """Euclidean norm over all tensors."""
    norms = [norm(g) for g in gradients]
    return torch.linalg.vector_norm(torch.stack([n.to(norms[0]) for n in norms]))
