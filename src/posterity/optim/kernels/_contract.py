"""What kernels do for an optimizer, in any language."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from posterity.optim._meter import Meter
from posterity.optim._normalised import QUIET
from posterity.optim.kernels._pointer_table import ADAM_NUMBERS, NUMBERS, Entry, Marks, Table, Tensors


def largest(dtype: torch.dtype) -> float:
    """The largest |gradient| · √ess that is learnt from: its square, times that of the largest noise, fits a dtype.

    The Hessian takes in ĥ²/(h + δ) = ess · ε² · gradient², and |ε| < 7.
    """
    return float(torch.finfo(dtype).max ** 0.5 / 8)


class Kernels(ABC):
    """Kernels at work on one table: a sample, and its removal.

    Args:
        entries: The parameters; their tensors must stay where they are.
        marks: Seed, number of the sample, of draws and of skipped steps of each group; the last two on the device.
    """

    numbers: tuple[str, ...] = NUMBERS  # of each group

    def __init__(self, entries: Sequence[Entry], marks: Sequence[Marks]) -> None:
        self.table = Table(entries, marks, self.numbers)

    @abstractmethod
    def draw(
        self,
        gradients: Tensors = (),
        products: Tensors = (),
        *,
        fresh: bool = True,
        keep: bool = False,
        done: list[int] | None = None,
    ) -> None:
        """Put a sample in place of the means, which go into the buffers.

        Args:
            gradients: Of each entry, where there are products.
            products: Sums to which to add (last sample − this one) · gradient, with the last sample in the buffers.
            fresh: Whether it is a new one, and not the last one again.
            keep: Whether it is to be in the buffers instead, with the means in place.
            done: Grows with each launch that has put its samples in place; see `undo`.
        """

    @abstractmethod
    def restore(self, done: list[int], *, keep: bool = False) -> None:
        """Put the means back from the buffers; with `keep`, the buffers get the samples.

        Args:
            done: Grows with each launch that has put its means back; a second call does the rest.
            keep: Whether the buffers get the samples.
        """

    def undo(self, done: list[int]) -> None:
        """Put the means back after a `draw` that was interrupted.

        Args:
            done: What it has grown.
        """
        for launch in done:
            for number in self.table.launches[launch].members.tolist():
                tensors = self.table.entries[number].tensors
                tensors["p"].copy_(tensors["buffer"])


class IVONKernels(Kernels):
    """With the step of IVON."""

    @abstractmethod
    def step(
        self,
        gradients: Tensors,
        products: Tensors = (),
        *,
        sampled: bool = True,
        held: bool = False,
        ahead: bool = False,
        done: list[int] | None = None,
    ) -> None:
        """Update everything, or skip it all if a gradient is not finite or too large.

        Args:
            gradients: Of each entry.
            products: Sums of noise times gradient to learn from, if any.
            sampled: Whether to learn from the last samples and the gradients.
            held: Whether the samples are still in place.
            ahead: Whether to put the next samples in place.
            done: Grows when the step has been taken.
        """


@dataclass(frozen=True)
class Course:
    """Where a run of `Variational` is, beside its tensors.

    Args:
        meter: What it measures.
        rates: The learning rates of all groups.
        share: Of the budget, that is used at most.
        deltas: δ of each entry, on the device; looks at all weights write it.
        quiet: What δ is multiplied with.
        given: Whether δ is that of a given prior, which no look changes.
        scale: What a GradScaler multiplied the loss with, if it is known.
    """

    meter: Meter
    rates: Sequence[float | Tensor]
    share: float
    deltas: Tensor
    quiet: Tensor
    given: bool
    scale: Tensor | None = None

    @property
    def still(self) -> float:
        """What δ is multiplied with where a weight and its curvature are exactly 0; see `Variational`."""
        return 1.0 if self.given else QUIET

    @property
    def lr(self) -> float:
        """The largest learning rate, for which the host may have to wait."""
        return max(map(float, self.rates))


class AdamKernels(Kernels):
    """With prices and steps of `Variational` over Adam."""

    numbers = ADAM_NUMBERS

    @abstractmethod
    def follow(self, course: Course) -> None:
        """Let the widths of the next sample be those of a course."""

    def catch_up(self) -> None:
        """Update the host's counters from the device, where they may differ."""
        return

    @abstractmethod
    def size(self, gradients: Tensors) -> None:
        """Remember how large the gradients of the sample in place are, before anybody scales them."""

    @abstractmethod
    def scaled(self, gradients: Tensors) -> Tensor:
        """What has become of gradients since `size`, as one factor."""

    @abstractmethod
    def step(
        self, gradients: Tensors, course: Course, *, held: bool = False, ahead: bool = False, done: list[int]
    ) -> bool:
        """Measure the price, set λ, and update everything.

        Args:
            gradients: Of each entry.
            course: Which the step moves on.
            held: Whether the samples are still in place.
            ahead: Whether to put the next samples in place.
            done: Grows when the step has been taken.

        Returns:
            False if the host has seen a gradient that is not finite: then nothing is changed.
        """
