"""What draws samples and takes steps: the contract of the two backends, and the one of plain tensor operations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from posterity.noise import Key
from posterity.optim._distributed import Replicas, first_index, local
from posterity.optim.engine._equations import Equations
from posterity.optim.engine._lifecycle import Lifecycle
from posterity.optim.engine._parameters import Group, Parameters
from posterity.optim.kernels import Piece


@dataclass(frozen=True)
class Work:
    """All that a backend works on, for the length of one call."""

    samples: Lifecycle
    parameters: Parameters
    equations: Equations
    replicas: Replicas


class Backend(ABC):
    """Draws samples and takes steps. A method that returns False leaves its work to the next backend, ready for it."""

    @abstractmethod
    def place(self, work: Work, fresh: bool) -> bool:
        """Put a sample in place, as `Lifecycle.begin` prepared it.

        Args:
            work: What to work on.
            fresh: Whether it is a new one, and not the last one again.
        """

    @abstractmethod
    def take_away(self, work: Work) -> bool:
        """Put the mean back from the sample in place."""

    @abstractmethod
    def step(self, work: Work) -> bool:
        """Take a step straight from one sample, in place or just taken away, without looking at its gradients first."""

    @abstractmethod
    def update(self, work: Work, parameters: Sequence[tuple[Group, Tensor]], estimates: int) -> bool:
        """Take a step from the mean and the statistics of samples.

        Args:
            work: What to work on.
            parameters: Those with finite gradients, and their groups.
            estimates: How many gradients their sums are averaged over.
        """


class Eager(Backend):
    """Everything, in plain tensor operations."""

    def place(self, work: Work, fresh: bool) -> bool:
        samples, equations, train = work.samples, work.equations, work.samples.train
        for group in work.parameters.groups:
            group["draws"] += train and fresh
        samples.predictions += not train
        options = [equations.options_of(group) for group in work.parameters.groups]
        pieces, buffers = [], {}
        for index, number, p in work.parameters.trainable():
            group = work.parameters.groups[number]
            step, sample = (int(group["draws"]), work.replicas.rank) if train else (0, samples.predictions - 1)
            buffers[p] = samples.statistics.buffer(p, train)
            widths = {name: local(t) for name, t in equations.width_state(p).items()}
            tensors = {"p": local(p.detach()), "buffer": buffers[p], **widths}
            key = Key(group["seed"], step, sample, index)
            pieces.append(Piece(tensors, equations.numbers(p, options[number]), key, first_index(p)))
        overwritten: list[Piece] = []
        try:
            equations.perturb(pieces, overwritten)
            samples.place(buffers)
        except BaseException:
            if not samples.in_place:  # otherwise whoever asked for the sample abandons it
                for piece in overwritten:
                    piece.tensors["p"].copy_(piece.tensors["buffer"])
            raise
        return True

    def take_away(self, work: Work) -> bool:
        work.samples.take_away()
        return True

    def step(self, work: Work) -> bool:
        return False

    def update(self, work: Work, parameters: Sequence[tuple[Group, Tensor]], estimates: int) -> bool:
        equations, options = work.equations, {id(g): work.equations.options_of(g) for g in work.parameters.groups}
        pieces = []
        for group, p in parameters:
            equations.state_of(p, group)["step"] += 1
            tensors = {name: local(t) for name, t in {"p": p.detach(), **work.parameters.tensors(p)}.items()}
            found, scales = work.samples.statistics.evidence(p, estimates)
            tensors, numbers = tensors | found, equations.numbers(p, options[id(group)]) | scales
            equations.observe(p, tensors, options[id(group)], numbers)
            pieces.append(Piece(tensors, numbers))
        equations.apply(pieces)
        return True
