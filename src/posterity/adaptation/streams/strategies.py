"""Learners of task streams: what each method keeps between tasks, and the penalty that it builds from it.

A strategy keeps a Gaussian anchor and one memory for each task, and nothing else of the past. Training is `po.fit`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from posterity.adaptation.past import refreshed
from posterity.adaptation.penalties.combined import labels_of
from posterity.adaptation.penalties.fromp import fromp
from posterity.adaptation.penalties.kprior import k_prior, outputs_of
from posterity.adaptation.penalties.penalty import Penalty
from posterity.adaptation.penalties.quadratic import Quadratic, accumulate
from posterity.adaptation.penalties.replay import Replay
from posterity.adaptation.penalties.synaptic import SynapticIntelligence
from posterity.adaptation.selection import select
from posterity.adaptation.streams.tasks import Data, Task
from posterity.batches import Batch
from posterity.learning import Callback, Run, fit
from posterity.likelihoods import CategoricalLikelihood
from posterity.posterior import Diagonal, Memory, Posterior
from posterity.trees import trainable

LIKELIHOOD = CategoricalLikelihood()


def trained(model: nn.Module, data: Data, **given: Any) -> Run:
    """`po.fit` on a task; Ctrl-C ends the stream, since a task that is half learnt is not to be built upon."""
    run = fit(model, data, likelihood=LIKELIHOOD, **given)
    if run.interrupted:
        raise KeyboardInterrupt
    return run


@dataclass
class Strategy:
    """A way to learn one task after another.

    Args:
        options: What `po.fit` is given: epochs, lr, batch_size, clip ...
        prior_precision: δ of the prior before the first task.
        anchor: The Gaussian that represents all tasks so far.
        memories: What is remembered of each.
        seen: Number of examples so far.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    prior_precision: float = 1.0
    anchor: Diagonal | None = None
    memories: list[Memory] = field(default_factory=list)
    seen: int = 0

    def learn(self, model: nn.Module, task: Task, seed: int) -> None:
        """Train the model on a task, in place, and take along what will be needed."""
        n = len(task.train[1])
        penalty = self.penalty(model, n)
        given: dict[str, Any] = {"method": "adamw", "prior": 0.0, "schedule": "constant", **self.options}
        if penalty is not None:
            given["penalty"] = penalty.over(n)
        given["callbacks"] = [*given.get("callbacks", ()), *self.watchers()]
        trained(model, self.data(task), seed=seed, **given)
        self.seen += n
        self.consolidate(model, task, seed)

    def resume(self, tasks: Sequence[Task]) -> None:
        """Go on in another process after these tasks; anchor, memories and the number of examples are there again."""

    def data(self, task: Task) -> Data:
        """What is trained on."""
        return task.train

    def penalty(self, model: nn.Module, n: int) -> Penalty | None:
        """What represents earlier tasks while the next one, of n examples, is learnt."""
        return None

    def watchers(self) -> list[Callback]:
        """Callbacks of the training."""
        return []

    def consolidate(self, model: nn.Module, task: Task, seed: int) -> None:
        """Take along what is needed of a task that was just learnt."""

    def probabilities(self, model: nn.Module, data: Data) -> Tensor:
        """Class probabilities of test inputs."""
        batch = Batch(data[0], data[1], torch.arange(len(data[1])))
        return outputs_of(model, batch).softmax(-1)

    def prior(self, model: nn.Module) -> Diagonal:
        """The anchor, or before the first task the prior."""
        return Diagonal.isotropic(trainable(model), self.prior_precision) if self.anchor is None else self.anchor

    def posterior(self, model: nn.Module) -> Posterior:
        """The anchor as a posterior of the model."""
        prior = Diagonal.isotropic(trainable(model), self.prior_precision)
        return Posterior.of(model, self.prior(model), prior=prior, n=self.seen, ess=self.seen, likelihood=LIKELIHOOD)


class FineTuning(Strategy):
    """Train on the next task as if there had been none before: what forgetting looks like."""


@dataclass
class Joint(Strategy):
    """Train on all tasks so far: what could be had without forgetting."""

    past: list[Data] = field(default_factory=list)

    def resume(self, tasks: Sequence[Task]) -> None:
        self.past = [task.train for task in tasks]

    def data(self, task: Task) -> Data:
        self.past.append(task.train)
        joined = Batch.concatenate([Batch(x, y, torch.arange(len(y))) for x, y in self.past])
        return joined.inputs, joined.targets


@dataclass
class EWC(Strategy):
    """Online EWC: one Gaussian around the last weights, with the true Fisher information of all tasks.

    Args:
        strength: λ.
        decay: γ, how much of the older tasks' information stays.
    """

    strength: float = 1.0
    decay: float = 1.0

    def penalty(self, model: nn.Module, n: int) -> Penalty | None:
        return None if self.anchor is None else self.strength * Quadratic(self.anchor)

    def consolidate(self, model: nn.Module, task: Task, seed: int) -> None:
        found = accumulate(self.prior(model), model, task.train, LIKELIHOOD, decay=self.decay)
        assert isinstance(found, Diagonal)
        self.anchor = found


@dataclass
class SI(Strategy):
    """Synaptic intelligence.

    Args:
        strength: c.
        damping: ξ.
    """

    strength: float = 1.0
    damping: float = 0.1

    def penalty(self, model: nn.Module, n: int) -> Penalty | None:
        self.watch = SynapticIntelligence(model, self.damping)
        if self.anchor is not None:
            self.watch.importance = {name: p / 2 for name, p in self.anchor.precision_diagonal().items()}
        return self.watch.penalty(n, self.strength)

    def watchers(self) -> list[Callback]:
        return [self.watch]

    def consolidate(self, model: nn.Module, task: Task, seed: int) -> None:
        self.watch.consolidate(model)
        self.anchor = Diagonal(self.watch.anchor, {name: 2 * omega for name, omega in self.watch.importance.items()})


@dataclass
class Remembering(Strategy):
    """What strategies with a memory share: examples chosen after each task, and online EWC's Gaussian.

    Args:
        size: Examples remembered of each task, or all where it has fewer.
        by: How they are chosen; see `select`.
        weighted: Whether they represent the whole task.
        strength: How much the past counts; 1 is what it would count if nothing had been approximated.
        batch_size: Memory examples for each step; all of them unless given.
    """

    size: int = 200
    by: str = "random"
    weighted: bool = True
    strength: float = 1.0
    batch_size: int | None = None

    def consolidate(self, model: nn.Module, task: Task, seed: int) -> None:
        found = accumulate(self.prior(model), model, task.train, LIKELIHOOD)
        assert isinstance(found, Diagonal)
        self.anchor = found
        size = min(self.size, len(task.train[1]))
        kept = select(model, self.posterior(model), task.train, size, by=self.by, weighted=self.weighted, seed=seed)
        self.memories.append(kept)

    def memory(self, model: nn.Module) -> Memory:
        """All memories as one, with the model's present outputs."""
        weights = torch.cat([memory.weights for memory in self.memories])
        joined = Batch.concatenate([memory.batch() for memory in self.memories])
        ids = torch.arange(len(joined), device=joined.targets.device)
        return refreshed(Memory.of(replace(joined, ids=ids), weights.to(joined.targets.device)), model)


class ReplayMemory(Remembering):
    """Remembered examples with their labels, weighted to represent all."""

    def penalty(self, model: nn.Module, n: int) -> Penalty | None:
        if not self.memories:
            return None
        return self.strength * Replay(self.memory(model), LIKELIHOOD, batch_size=self.batch_size)


class KPrior(Remembering):
    """The K-prior of all tasks so far."""

    def penalty(self, model: nn.Module, n: int) -> Penalty | None:
        if not self.memories:
            return None
        return self.strength * k_prior(model, self.posterior(model), self.memory(model), batch_size=self.batch_size)


class Combined(Remembering):
    """EWC, functional regularisation and labels together; `strength` is that of the first two, labels count once."""

    def penalty(self, model: nn.Module, n: int) -> Penalty | None:
        if not self.memories:
            return None
        posterior, memory = self.posterior(model), self.memory(model)
        past = k_prior(model, posterior, memory, batch_size=self.batch_size)
        return self.strength * past + labels_of(model, memory, posterior, self.batch_size)


@dataclass
class FunctionalPrior(Remembering):
    """FROMP; with `by="random"` FRORP, with `kernels="identity"` the L2 variants.

    Args:
        tau: τ, the weight of the functional prior beside the mean loss of a task.
        jitter: ε.
        kernels: "posterior" or "identity".
    """

    by: str = "curvature"
    tau: float = 1.0
    jitter: float = 1e-5
    kernels: str = "posterior"

    def penalty(self, model: nn.Module, n: int) -> Penalty | None:
        if not self.memories:
            return None
        prior = fromp(model, self.memories, self.posterior(model), jitter=self.jitter, kernels=self.kernels)
        return (self.strength * self.tau * n) * prior
