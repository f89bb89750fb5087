"""What every belief about rewards can do, and the rewards that were seen."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from posterity.errors import expected, require
from posterity.trees import evaluating


class Belief(ABC):
    """A posterior over the expected rewards of some arms, given a context; updated as rewards come in.

    Attributes:
        arms: Number of arms.
    """

    arms: int

    @abstractmethod
    def draw(self, contexts: Tensor, seed: int, number: int) -> Tensor:
        """Expected rewards (B, arms) under a draw of the weights of its own for each context (B, D).

        Args:
            contexts: Contexts (B, D).
            seed: Seed of the draws.
            number: Number of the first context's decision; a belief with closed draws gives the same decision the same
                draw, alone or in a batch.
        """

    @abstractmethod
    def moments(self, contexts: Tensor) -> tuple[Tensor, Tensor]:
        """Posterior mean and standard deviation of the expected rewards, (B, arms) each."""

    @abstractmethod
    def update(self, contexts: Tensor, arms: Tensor, rewards: Tensor) -> None:
        """Learn from rewards (B,) of the arms (B,) that were pulled in these contexts (B, D)."""


class RewardHistory:
    """Contexts, arms and rewards that were seen, in columns that grow by doubling."""

    def __init__(self) -> None:
        self.n = 0
        self._columns: tuple[Tensor, ...] = ()

    def add(self, *columns: Tensor) -> None:
        """Append rows."""
        if not self._columns:
            self._columns = tuple(c.new_empty(16, *c.shape[1:]) for c in columns)
        more = self.n + len(columns[0])
        while more > len(self._columns[0]):
            self._columns = tuple(torch.cat((c, torch.empty_like(c))) for c in self._columns)
        for kept, new in zip(self._columns, columns, strict=True):
            kept[self.n : more] = new
        self.n = more

    @property
    def columns(self) -> tuple[Tensor, ...]:
        """All rows so far."""
        return tuple(c[: self.n] for c in self._columns)

    def sample(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Rows drawn with replacement."""
        rows = torch.randint(self.n, (count,), generator=generator)
        return tuple(c[rows] for c in self._columns)


def squared_error(network: nn.Module, contexts: Tensor, arms: Tensor, rewards: Tensor) -> Tensor:
    """½ mean squared error of the outputs of the arms that were pulled."""
    pulled = network(contexts).gather(1, arms.unsqueeze(1))[:, 0]
    return 0.5 * (pulled - rewards.to(pulled)).square().mean()


def arms_of(network: nn.Module, contexts: Tensor) -> int:
    """The number of outputs of a network."""
    with torch.no_grad(), evaluating(network):
        f = network(contexts[:1])
    if f.ndim != 2:
        raise expected("network", "outputs (B, arms)", tuple(f.shape))
    return int(f.shape[1])


def checked(contexts: Tensor, arms: Tensor, rewards: Tensor, count: int) -> None:
    """Raise unless numbers that can be learnt from belong to arms that exist."""
    require(arms.ndim == rewards.ndim == 1, "arms and rewards", "shape (B,) each", (arms.shape, rewards.shape))
    require(bool(torch.isfinite(contexts).all()), "contexts", "finite numbers", "NaN or infinity")
    require(len(contexts) == len(arms) == len(rewards), "rewards", f"{len(arms)}, one for each decision", len(rewards))
    require(bool(torch.isfinite(rewards).all()), "rewards", "finite numbers", rewards)
    require(bool(((arms >= 0) & (arms < count)).all()), "arms", f"integers in 0..{count - 1}", arms)
