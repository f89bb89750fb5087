"""Bayesian linear regression of the reward, an exact posterior for each arm.

r ~ N(wᵀx, 1/τ),   w | τ ~ N(m, Σ/τ),   τ ~ Gamma(a, b)      (τ known: w ~ N(m, Σ/τ))
"""

from __future__ import annotations

import torch
from torch import Tensor

from posterity.errors import require, require_positive
from posterity.exploration.bandits._belief import Belief, checked
from posterity.noise import Key, normal, standard_gamma


class LinearGaussian(Belief):
    """A conjugate linear model of each arm's reward.

    Each arm keeps the triangle R and the vector z of least squares, Σ = (RᵀR)⁻¹ and m = R⁻¹z. An observation (x, r)
    becomes one more row, which an orthogonal Q turns into the new triangle and what is left of the reward, e:

        Qᵀ (R  z; xᵀ r) = (R′ z′; 0 e),   a ← a + ½,   b ← b + ½ e²

    Unlike differences of covariances this loses nothing where the prior is vague or contexts are large.

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
        >>> belief.moments(torch.ones(1, 1))[0]  # 3 · 4 / (3 + 1), and the prior for the arm without data
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
        self._root = torch.eye(size, dtype=torch.float64).repeat(arms, 1, 1) * prior_precision**0.5  # R
        self._shift = torch.zeros(arms, size, 1, dtype=torch.float64)  # z
        self.shape = torch.full((arms,), shape, dtype=torch.float64)
        self.rate = torch.full((arms,), rate, dtype=torch.float64)

    @property
    def mean(self) -> Tensor:
        """m of each arm, (arms, D)."""
        return torch.linalg.solve_triangular(self._root, self._shift, upper=True)[:, :, 0]

    @property
    def covariance(self) -> Tensor:
        """Σ of each arm, (arms, D, D)."""
        inverse = torch.linalg.inv(self._root)
        return inverse @ inverse.mT

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
        """Several observations of one arm at once: as many more rows."""
        rows = torch.cat((torch.cat((self._root[arm], self._shift[arm]), 1), torch.cat((x, r.unsqueeze(1)), 1)))
        triangle = torch.linalg.qr(rows, mode="r").R
        self._root[arm], self._shift[arm] = triangle[:-1, :-1], triangle[:-1, -1:]
        self.shape[arm] += 0.5 * len(x)
        self.rate[arm] += 0.5 * triangle[-1, -1] ** 2

    def _projected(self, contexts: Tensor) -> tuple[Tensor, Tensor]:
        """mᵀx and √(xᵀΣx) = ‖R⁻ᵀx‖, (B, arms)."""
        x = self._with_bias(contexts)
        whitened = torch.linalg.solve_triangular(self._root.mT, x.T, upper=False)
        return x @ self.mean.T, whitened.norm(dim=1).T

    def _drawn_precision(self, count: int, seed: int, number: int) -> Tensor:
        """τ of each context and arm, with noise of its own for each decision: batches change nothing."""
        if self.noise_precision is not None:
            return torch.full((count, self.arms), self.noise_precision, dtype=torch.float64)
        keys = (Key(seed, 0, decision, 1) for decision in range(number, number + count))  # 0 are the weights
        return torch.stack([standard_gamma(key, self.shape) for key in keys]) / self.rate

    def _with_bias(self, contexts: Tensor) -> Tensor:
        fits = contexts.ndim == 2 and contexts.shape[1] == self.features
        require(fits, "contexts", f"shape (B, {self.features})", tuple(contexts.shape))
        x = contexts.double()
        return torch.cat((x, torch.ones_like(x[:, :1])), 1) if self.bias else x
