"""Bayesian linear regression of the reward, an exact posterior for each arm.

r ~ N(wᵀx, 1/τ),   w | τ ~ N(m, Σ/τ),   τ ~ Gamma(a, b)      (τ known: w ~ N(m, Σ/τ))
"""

from __future__ import annotations

import torch
from torch import Tensor

from posterity.errors import require, require_positive
from posterity.exploration.bandits._belief import Belief, checked
from posterity.linalg import symmetrise
from posterity.noise import Key, normal


class LinearGaussian(Belief):
    """A conjugate linear model of each arm's reward.

    An observation (x, r) moves the arm that was pulled by one step of recursive least squares:

        s = 1 + xᵀΣx,   k = Σx/s,   m ← m + k(r − xᵀm),   Σ ← Σ − k xᵀΣ,   a ← a + ½,   b ← b + (r − xᵀm)²/2s

    Args:
        features: Length D of a context.
        arms: Number of arms.
        prior_precision: w ~ N(0, 1/(τ · prior_precision)).
        noise_precision: τ where it is known; learnt otherwise.
        shape: a of the prior of τ.
        rate: b of the prior of τ.
        bias: Whether contexts get a further feature that is always one.

    Examples:
        >>> belief = LinearGaussian(1, arms=2, bias=False, noise_precision=1.0)
        >>> belief.update(torch.ones(3, 1), torch.zeros(3, dtype=torch.int64), torch.full((3,), 4.0))
        >>> belief.moments(torch.ones(1, 1))[0]  # 3 · 4 / (3 + 1), and the prior for the arm nobody pulled
        tensor([[3., 0.]], dtype=torch.float64)
    """

    def __init__(
        self,
        features: int,
        arms: int,
        *,
        prior_precision: float = 1.0,
        noise_precision: float | None = None,
        shape: float = 6.0,
        rate: float = 6.0,
        bias: bool = True,
    ) -> None:
        require(features >= 1 and arms >= 1, "features and arms", "whole numbers >= 1", (features, arms))
        for name, value in (("prior_precision", prior_precision), ("shape", shape), ("rate", rate)):
            require_positive(name, value)
        if noise_precision is not None:
            require_positive("noise_precision", noise_precision)
        self.arms, self.features, self.bias, self.noise_precision = arms, features, bias, noise_precision
        size = features + bias
        self.mean = torch.zeros(arms, size, dtype=torch.float64)
        self.covariance = torch.eye(size, dtype=torch.float64).repeat(arms, 1, 1) / prior_precision
        self.shape = torch.full((arms,), shape, dtype=torch.float64)
        self.rate = torch.full((arms,), rate, dtype=torch.float64)

    def draw(self, contexts: Tensor, seed: int, number: int) -> Tensor:
        # Each context has weights of its own, so that only their projections wᵀx ~ N(mᵀx, xᵀΣx/τ) are needed.
        mean, scale = self._projected(contexts)
        noise = [normal(Key(seed, 0, number + i), self.arms, dtype=torch.float64) for i in range(len(mean))]
        return mean + scale * torch.stack(noise) / self._drawn_precision(len(mean), seed, number).sqrt()

    def moments(self, contexts: Tensor) -> tuple[Tensor, Tensor]:
        mean, scale = self._projected(contexts)
        if self.noise_precision is not None:
            return mean, scale / self.noise_precision**0.5
        return mean, scale * (self.rate / (self.shape - 1).clamp_min(0.5)).sqrt()  # E[1/τ] = b/(a − 1)

    def update(self, contexts: Tensor, arms: Tensor, rewards: Tensor) -> None:
        checked(contexts, arms, rewards, self.arms)
        x, r = self._with_bias(contexts), rewards.double()
        for arm in arms.unique().tolist():
            rows = (arms == arm).nonzero()[:, 0]
            self._observe(arm, x[rows], r[rows])

    def _observe(self, arm: int, x: Tensor, r: Tensor) -> None:
        """Several observations of one arm at once: the equations of the class with S = I + xΣxᵀ in place of s."""
        spread = self.covariance[arm] @ x.T
        S = torch.eye(len(x), dtype=torch.float64) + x @ spread
        surprise = r - x @ self.mean[arm]
        gain = torch.linalg.solve(S, spread.T).T
        self.mean[arm] += gain @ surprise
        self.covariance[arm] = symmetrise(self.covariance[arm] - gain @ spread.T)
        self.shape[arm] += 0.5 * len(x)
        self.rate[arm] += 0.5 * surprise @ torch.linalg.solve(S, surprise)

    def _projected(self, contexts: Tensor) -> tuple[Tensor, Tensor]:
        """mᵀx and √(xᵀΣx), (B, arms)."""
        x = self._with_bias(contexts)
        variance = torch.einsum("bi,aij,bj->ba", x, self.covariance, x)
        return x @ self.mean.T, variance.clamp_min(0).sqrt()

    def _drawn_precision(self, count: int, seed: int, number: int) -> Tensor:
        """τ of each context and arm, for each decision from a generator of its own: batches change nothing."""
        if self.noise_precision is not None:
            return torch.full((count, self.arms), self.noise_precision, dtype=torch.float64)
        generator, drawn = torch.Generator(), []
        for decision in range(number, number + count):
            generator.manual_seed(hash((seed, decision)) % 2**63)
            drawn.append(torch._standard_gamma(self.shape, generator=generator))
        return torch.stack(drawn) / self.rate

    def _with_bias(self, contexts: Tensor) -> Tensor:
        fits = contexts.ndim == 2 and contexts.shape[1] == self.features
        require(fits, "contexts", f"shape (B, {self.features})", tuple(contexts.shape))
        x = contexts.double()
        return torch.cat((x, torch.ones_like(x[:, :1])), 1) if self.bias else x
