"""The life of a sample, from the step that leaves the mean in place to the step that learns from it.

    MEAN ──place──► SAMPLED ──differentiate──► DIFFERENTIATED
     ▲ │               │  ▲                        │
     │ │            take_away │place               │take_away
     │ │               ▼  │                        │
     │ │             PENDING ◄─────────────────────┘
     │ │               │
     │ └place_ahead──► AHEAD ──use──► SAMPLED
     └────discard──────┘  (a step, or gradients that are cleared)

A sample to predict with goes from any phase of the mean to SAMPLED and back. Between MEAN and the step there may be any
number of samples; `Statistics` keeps the result of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

import torch
from torch import Tensor

from posterity.errors import expected
from posterity.optim._distributed import any_sharded, local
from posterity.optim.engine._statistics import Statistics
from posterity.optim.kernels import put_back, put_forth

Means = dict[Tensor, Tensor]


class Phase(Enum):
    """What is in place of the parameters, and what waits for the next step."""

    MEAN = "the mean is in place, and nothing waits for a step"
    AHEAD = "a sample is in place that the last step drew and no pass has used"
    SAMPLED = "a sample is in place"
    DIFFERENTIATED = "a sample is in place, and gradients at it have come"
    PENDING = "the mean is in place, and the statistics of samples wait for a step"


IN_PLACE = (Phase.AHEAD, Phase.SAMPLED, Phase.DIFFERENTIATED)
REACHED_FROM = {  # the phases that each may follow
    Phase.MEAN: tuple(Phase),
    Phase.AHEAD: (Phase.MEAN,),
    Phase.SAMPLED: (Phase.MEAN, Phase.AHEAD, Phase.PENDING),
    Phase.DIFFERENTIATED: (Phase.SAMPLED, Phase.DIFFERENTIATED),
    Phase.PENDING: (Phase.SAMPLED, Phase.DIFFERENTIATED),
}


def exchanged(means: Means, back: list[int]) -> None:
    """Swap samples that are in place with their means; see `put_back`."""
    put_back([local(p.detach()) for p in means], list(means.values()), back)


@dataclass
class Lifecycle:
    """The phase of one optimizer's samples, and the transitions between phases."""

    statistics: Statistics
    phase: Phase = Phase.MEAN
    means: Means = field(default_factory=dict)  # of the parameters that hold a sample
    versions: list[int] = field(default_factory=list)  # of those parameters, as autograd counts writes
    exchange: Callable[[Means, list[int]], None] = exchanged  # what puts the means back
    back: list[int] = field(default_factory=list)  # what it has put back by now: it may be interrupted
    hidden: bool = False  # whether the mean is in place for the length of an evaluation pass
    train: bool = False  # whether the sample in place is one to learn from
    redrawable: bool = False  # whether the last sample is one that kernels can draw again, so that nothing is stored
    context_open: bool = False
    broken: bool = False  # whether a context ended with an error, until all is as before it
    sampling: bool = True  # whether attached models are sampled
    ahead: bool = False  # whether a step puts the next sample in place
    until_step: bool = False  # whether a sample stays in place from the end of its context to the step
    passes: int = 0  # training passes of attached models that hold the sample and have not been differentiated
    backwards: set[int] = field(default_factory=set)  # backward passes through attached models that have begun
    predictions: int = 0  # samples to predict with, so far

    @property
    def in_place(self) -> bool:
        """Whether the parameters hold a sample."""
        return self.phase in IN_PLACE

    @property
    def used_up(self) -> bool:
        """Whether the sample in place is not for the next pass of an attached model."""
        return self.phase in (Phase.AHEAD, Phase.DIFFERENTIATED)

    # ── a sample comes ───────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, train: bool, parameters: Sequence[Tensor]) -> bool:
        """Prepare for a sample, and return whether it needs new noise.

        Earlier samples that left no gradient are forgotten. Shards that accumulate without communication show no
        gradient before the last pass, whose product has to be that of all: they keep their sample.
        """
        if self.statistics.per_rank and any_sharded(parameters):
            raise expected("noise='per_rank'", "whole parameters on each process", "sharded ones")
        self.train = train
        if not self.statistics.finished or any(p.grad is not None for p in parameters):
            return True
        self.discard()
        return not any_sharded(parameters)

    def place(self, means: Means, *, redrawable: bool = False, summed: bool = False) -> None:
        """A sample has been put in place, and each mean into a buffer.

        Args:
            means: The buffers.
            redrawable: Whether kernels can draw it again.
            summed: Whether kernels have taken the product with the noise of the last sample less that of this one.
        """
        self._replace(means)
        self._to(Phase.SAMPLED)
        self.passes, self.redrawable = 0, redrawable
        if not redrawable:
            self.statistics.sampled(means, self.train, summed)

    def place_ahead(self, means: Means) -> None:
        """A step has put the next sample to learn from in place."""
        self._replace(means)
        self._to(Phase.AHEAD)
        self.train, self.redrawable, self.passes = True, True, 0

    def use(self) -> bool:
        """Begin to use the sample that the last step has put in place, if there is one."""
        if self.phase is not Phase.AHEAD:
            return False
        self._to(Phase.SAMPLED)
        return True

    def differentiate(self) -> None:
        """Gradients have come from the sample in place, if it still is."""
        if self.in_place:
            self._to(Phase.DIFFERENTIATED)

    # ── a sample goes ────────────────────────────────────────────────────────────────────────────────────────────

    @torch.no_grad()
    def take_away(self) -> None:
        """Put the mean back, bit for bit; a sample to learn from counts from here on."""
        means, statistics = self.means, self.statistics
        if self.train and statistics.cleared(means):
            self.close()
        if self.train and not statistics.measured:
            statistics.measure(means)
        statistics.left(means, self.train)
        if self.train:
            self.exchange(means, self.back)
        else:
            for p, mean in means.items():
                local(p).copy_(mean)
        self._replace({})
        statistics.finished += self.train and self.phase is not Phase.AHEAD
        self.redrawable = False
        self._rest()

    def taken_away(self) -> None:
        """Kernels have put the mean back from a sample that they can draw again."""
        self._replace({})
        used = self.phase is not Phase.AHEAD
        self.statistics.finished += used
        self.redrawable = used
        self._rest()

    @torch.no_grad()
    def abandon(self) -> None:
        """Put the mean back whatever was interrupted, and forget everything since the last step."""
        self.exchange(self.means, self.back)
        self.statistics.left((), False)
        self._replace({})
        self.redrawable = self.hidden = self.context_open = False
        self.passes = 0
        self.backwards.clear()
        self._to(Phase.MEAN)
        self.discard()
        self.broken = False  # last: all this may be interrupted, and is done again then

    def end_in_copy(self) -> None:
        """End what a copy of an optimizer cannot go on with: a context, a sample of kernels that it does not have."""
        if self.context_open or self.in_place:
            self.abandon()
        self.statistics.hooks = []  # those of the original

    @property
    def failed(self) -> bool:
        """Whether a context, or a backward pass through an attached model, has ended with an error."""
        return self.broken or (bool(self.backwards) and not inside_backward() and not self.context_open)

    @property
    def overwritten(self) -> bool:
        """Whether other code has written into parameters that hold a sample, which is lost when the mean comes back."""
        return not self.back and self.versions != _versions(self.means)  # otherwise putting back was interrupted

    def stepped(self) -> None:
        """Kernels have taken a step from the last sample, and put the mean back."""
        self.means = {}
        self._rest()
        self.discard()

    def close(self) -> None:
        """Gradients so far are one estimate, to be averaged with more."""
        if not self.statistics.close():
            self.discard()

    def discard(self) -> None:
        """Forget all statistics; a sample in place stays there."""
        if not self.redrawable:  # otherwise nothing is stored
            self.statistics.clear()
        self.statistics.finished = self.statistics.closed = 0
        self.redrawable = self.redrawable and self.in_place
        if self.phase is Phase.PENDING:
            self._to(Phase.MEAN)

    def hide(self, hidden: bool) -> None:
        """Swap sample and mean behind autograd's back: the values it saved are to be there again before it looks."""
        exchange = put_back if hidden else put_forth
        with torch.no_grad():
            exchange([local(p.data) for p in self.means], list(self.means.values()), self.back)
        self.hidden = hidden
        torch.clear_autocast_cache()

    def _replace(self, means: Means) -> None:
        """Other weights are in place than before; of the old ones autocast may keep copies."""
        versions = _versions(means)
        self.means = means
        self.exchange = exchanged
        self.versions = versions
        self.back = []  # last: an interrupt must not find a way to put means back that believes nothing is back
        torch.clear_autocast_cache()

    def _rest(self) -> None:
        """The mean is in place: of its two possible phases, the one given by the statistics."""
        phase = Phase.PENDING if self.statistics.finished else Phase.MEAN
        if phase is not self.phase:
            self._to(phase)

    def _to(self, phase: Phase) -> None:
        assert self.phase in REACHED_FROM[phase], f"{phase} does not follow {self.phase}"
        self.phase = phase


def surely(action: Callable[[], None]) -> None:
    """Do what may be interrupted and done again, also where a second interrupt comes while the first is cleaned up."""
    try:
        action()
    except KeyboardInterrupt:
        action()
        raise


def inside_backward() -> bool:
    """Whether this is called from a backward pass."""
    return torch._C._current_graph_task_id() != -1


def _versions(parameters: Iterable[Tensor]) -> list[int]:
    try:
        return [p._version for p in parameters]
    except RuntimeError:  # some are tensors of inference mode, which have none
        return []
