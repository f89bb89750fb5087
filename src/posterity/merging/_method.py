"""What a merging method is: an equation on the same chunk of one tensor in every model."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, Literal

from torch import Tensor

from posterity.errors import expected, require

Scope = Literal["element", "tensor", "model", "whole"]


@dataclass(frozen=True, eq=False)
class Chunk:
    """A piece of one tensor, in the base and in every model.

    Args:
        models: θ_t, the chunk in each model; `combine` may overwrite them.
        weights: α_t, one number for each model.
        base: θ₀, the chunk in the base, for methods that start from one.
        curvatures: N_t H_t of each model, for methods that use them (Gram matrices for RegMean).
        base_precision: δ₀ + N₀ H₀ of the base.
        parameter: A number that identifies the tensor, for methods that draw noise.
        start: Index of the first element of the chunk in its tensor.
    """

    models: Sequence[Tensor]
    weights: Sequence[float]
    base: Tensor | None = None
    curvatures: Sequence[Tensor] = ()
    base_precision: Tensor | None = None
    parameter: int = 0
    start: int = 0

    @property
    def anchor(self) -> Tensor:
        """θ₀, which a method with `needs_base` can rely on."""
        assert self.base is not None
        return self.base

    @property
    def deltas(self) -> list[Tensor]:
        """Task vectors Δ_t = θ_t − θ₀."""
        return [model - self.anchor for model in self.models]


Chunks = Callable[[], Iterator[Chunk]]
"""Reads all chunks of a tensor, or of a model, as often as it is called."""


class Method(ABC):
    """One way of merging, with its options.

    A method first measures statistics of a whole tensor or model, one chunk after another, then combines chunk by
    chunk: no model ever has to be in memory.
    """

    name: ClassVar[str]
    needs_base: ClassVar[bool] = True
    needs_curvature: ClassVar[bool] = False
    averages: ClassVar[bool] = False
    """Whether weights only matter relative to each other."""
    beside: ClassVar[int] = 5
    """How many chunks a method keeps in memory beside those it is given: large ones are then cut smaller."""

    @property
    def scope(self) -> Scope:
        """What has to be measured before the first chunk, or "whole" where a tensor cannot be cut."""
        return "element"

    def curvature_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the curvature of a tensor."""
        return shape

    def measure(self, chunks: Chunks) -> Any:
        """What `combine` needs from all chunks in the scope."""
        return None

    @abstractmethod
    def combine(self, chunk: Chunk, measured: Any) -> Tensor:
        """The merged chunk."""

    def check_base(self, given: bool) -> None:
        """Refuse a base that this method has no use for, and the lack of one that it starts from."""
        require(self.needs_base or not given, "base", f"none, {self.name!r} is an average of models", "one")
        require(given or not self.needs_base, "base", f"the model that {self.name!r} starts from", None)

    def check(self, weights: Sequence[float]) -> None:
        """Refuse weights that this method cannot use."""
        require(len(weights) > 0, "models", "at least one", "none")
        for weight in weights:
            require(isinstance(weight, Real) and math.isfinite(weight), "weights", "finite numbers", weight)
        if self.averages:
            total = sum(weights)
            require(abs(total) > 1e-12 * max(map(abs, weights), default=0.0), "sum of weights", "not zero", total)


def check_named(what: str, given: Any, kind: type, called: str | None = None) -> None:
    """Refuse what is no mapping from names to things of a kind, which may be called something else.

    Examples:
        >>> check_named("models", [1.0, 2.0], float)
        Traceback (most recent call last):
        posterity.errors.InvalidInput: models: expected a mapping from names to floats, got 'list'
    """
    called = called or kind.__name__
    require(isinstance(given, Mapping), what, f"a mapping from names to {called}s", type(given).__name__)
    for name, one in given.items():
        require(isinstance(one, kind), f"{what}[{name!r}]", f"a {called}", type(one).__name__)


def number(what: str, value: Any) -> float:
    """A number from any of its spellings."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise expected(what, "a number", str(value)[:40]) from None


def weighted_sum(weights: Sequence[float | Tensor], tensors: Sequence[Tensor]) -> Tensor:
    """Σ_t w_t x_t, one accumulator in memory."""
    total = tensors[0] * weights[0]
    for weight, t in zip(weights[1:], tensors[1:], strict=True):
        if isinstance(weight, Tensor):
            total.addcmul_(weight, t)
        else:
            total.add_(t, alpha=weight)
    return total
