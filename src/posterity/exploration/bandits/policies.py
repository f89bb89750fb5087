"""Policies: which arm to pull, given what is believed; rewards may come late, in any order, one by one or many."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posterity.batches import as_tensor
from posterity.errors import InvalidInput, expected, require, require_whole
from posterity.exploration.bandits._belief import Belief
from posterity.noise import Key, bits


class Decisions(NamedTuple):
    """Arms to pull, and the numbers under which their rewards are to be reported."""

    numbers: Tensor
    arms: Tensor


class Policy(ABC):
    """Chooses arms by a belief, and updates it with the rewards.

    Args:
        belief: What is believed about rewards.
        initial: How often each arm is pulled, in turn, before the belief is used.
        seed: Of everything random.
    """

    def __init__(self, belief: Belief, *, initial: int = 0, seed: int = 0) -> None:
        if not isinstance(belief, Belief):
            raise expected("belief", "a Belief, such as LinearGaussian", type(belief).__name__)
        require_whole("initial", initial, 0)
        self.belief, self.initial, self.seed = belief, initial, seed
        self.made = 0
        self._pending: dict[int, tuple[Tensor, int]] = {}

    @property
    def pending(self) -> Tensor:
        """Numbers of the decisions whose rewards have not come yet."""
        return torch.tensor(list(self._pending), dtype=torch.int64)

    def choose(self, contexts: Any) -> Decisions:
        """An arm for each context (B, D), or for one context (D,); a tensor, an array or lists of numbers."""
        contexts = as_tensor(contexts)
        contexts = contexts.unsqueeze(0) if contexts.ndim == 1 else contexts
        require(contexts.ndim == 2 and len(contexts) > 0, "contexts", "shape (B, D) or (D,)", tuple(contexts.shape))
        require(bool(torch.isfinite(contexts).all()), "contexts", "finite numbers", "NaN or infinity")
        numbers = torch.arange(self.made, self.made + len(contexts))
        arms = self.values(contexts, self.made).argmax(1).cpu()
        arms = torch.where(numbers < self.initial * self.belief.arms, numbers % self.belief.arms, arms)
        for number, context, arm in zip(numbers.tolist(), contexts, arms.tolist(), strict=True):
            self._pending[number] = (context.detach().clone(), arm)
        self.made += len(contexts)
        return Decisions(numbers, arms)

    def observe(self, numbers: Tensor | Sequence[int], rewards: Tensor | Sequence[float]) -> None:
        """Take in the rewards of some decisions, whenever they were made."""
        keys = torch.as_tensor(numbers).reshape(-1).tolist()
        values = torch.as_tensor(rewards, dtype=torch.float64).reshape(-1)
        require(len(values) == len(keys) > 0, "rewards", f"{len(keys)}, one for each decision", len(values))
        seen: set[int] = set()
        for key in keys:
            if key not in self._pending or key in seen:
                raise InvalidInput(f"observe: expected decisions that wait for their reward, each once, got {key}")
            seen.add(key)
        contexts, arms = zip(*(self._pending[key] for key in keys), strict=True)
        self.belief.update(torch.stack(contexts), torch.tensor(arms), values)
        for key in keys:
            del self._pending[key]

    @abstractmethod
    def values(self, contexts: Tensor, number: int) -> Tensor:
        """A value for each context and arm, (B, arms); the arm with the largest is pulled."""


class ThompsonSampler(Policy):
    """Thompson sampling: act as if one draw from the posterior were the truth.

    Examples:
        >>> from posterity.exploration.bandits import LinearGaussian
        >>> sampler = ThompsonSampler(LinearGaussian(2, arms=3))
        >>> decisions = sampler.choose(torch.randn(5, 2))  # five visitors
        >>> sampler.observe(decisions.numbers[3:], [1.0, 0.0])  # the last two have answered already
        >>> sampler.pending
        tensor([0, 1, 2])

    References:
        Thompson, "On the likelihood that one unknown probability exceeds another", 1933.
        Agrawal and Goyal, "Thompson sampling for contextual bandits with linear payoffs", 2013.
    """

    def values(self, contexts: Tensor, number: int) -> Tensor:
        return self.belief.draw(contexts, self.seed, number)


class UCB(Policy):
    """The upper confidence bound: mean + width · standard deviation.

    Args:
        belief: What is believed about rewards.
        width: How many standard deviations of optimism.
        initial: As in every policy.
        seed: As in every policy.
    """

    def __init__(self, belief: Belief, *, width: float = 1.0, initial: int = 0, seed: int = 0) -> None:
        super().__init__(belief, initial=initial, seed=seed)
        require(width >= 0, "width", "a number >= 0", width)
        self.width = width

    def values(self, contexts: Tensor, number: int) -> Tensor:
        mean, std = self.belief.moments(contexts)
        return mean + self.width * std


class Greedy(Policy):
    """The arm with the largest posterior mean: no exploration but what the initial pulls bring."""

    def values(self, contexts: Tensor, number: int) -> Tensor:
        return self.belief.moments(contexts)[0]


class EpsilonGreedy(Policy):
    """Greedy, but with probability ε any arm (ε = 1: uniform).

    Args:
        belief: What is believed about rewards.
        epsilon: ε.
        initial: As in every policy.
        seed: As in every policy.
    """

    def __init__(self, belief: Belief, *, epsilon: float = 0.1, initial: int = 0, seed: int = 0) -> None:
        super().__init__(belief, initial=initial, seed=seed)
        require(0 <= epsilon <= 1, "epsilon", "a probability", epsilon)
        self.epsilon = epsilon

    def values(self, contexts: Tensor, number: int) -> Tensor:
        values = self.belief.moments(contexts)[0].clone()
        for row in range(len(values)):
            coin, arm = (b.item() % 2**32 for b in bits(Key(self.seed, 0, number + row, 1), 0, 1))
            if coin < self.epsilon * 2**32:
                values[row, int(arm) % self.belief.arms] = torch.inf
        return values
