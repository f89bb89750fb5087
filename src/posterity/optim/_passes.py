"""The gradients of one backward pass, kept apart from earlier ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import torch
from torch import Tensor

from posterity.optim.kernels import require_dense


class IsolatedGradients:
    """A context that sets `.grad` aside; afterwards `found` holds what was computed inside."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self.aside: dict[Tensor, Tensor | None] = dict.fromkeys(parameters)
        self.found: dict[Tensor, Tensor] = {}

    def __enter__(self) -> Self:
        for p in self.aside:
            self.aside[p], p.grad = p.grad, None
        return self

    def drop(self) -> None:
        """Forget what was set aside: gradients from before this pass are being cleared."""
        self.aside = dict.fromkeys(self.aside)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.found = {p: p.grad for p in self.aside if p.grad is not None}
        for p, gradient in self.aside.items():
            p.grad = gradient
        for gradient in self.found.values():
            require_dense(gradient)

    def add(self) -> None:
        """Add what was found to `.grad`."""
        both = [(p.grad, g) for p, g in self.found.items() if p.grad is not None]
        if both:
            torch._foreach_add_(*map(list, zip(*both, strict=True)))
        for p, gradient in self.found.items():
            p.grad = gradient if p.grad is None else p.grad
