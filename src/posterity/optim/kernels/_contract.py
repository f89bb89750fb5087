"""What kernels do for an optimizer, whatever they are written in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from posterity.optim.kernels._pointer_table import Entry, Marks, Table, Tensors


def largest(dtype: torch.dtype) -> float:
    """The largest |gradient| · √ess that is learnt from: its square, times that of the largest noise, fits a dtype.

    The Hessian takes in ĥ²/(h + δ) = ess · ε² · gradient², and |ε| < 7.
    """
    return float(torch.finfo(dtype).max ** 0.5 / 8)


class Kernels(ABC):
    """Kernels at work on one table: a sample, its removal, a step.

    Args:
        entries: The parameters; their tensors must stay where they are.
        marks: Seed, number of the sample, of draws and of skipped steps of each group; the last two on the device.
    """

    def __init__(self, entries: Sequence[Entry], marks: Sequence[Marks]) -> None:
        self.table = Table(entries, marks)

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

    def undo(self, done: list[int]) -> None:
        """Put the means back after a `draw` that was interrupted.

        Args:
            done: What it has grown.
        """
        for launch in done:
            for number in self.table.launches[launch].members.tolist():
                tensors = self.table.entries[number].tensors
                tensors["p"].copy_(tensors["buffer"])
