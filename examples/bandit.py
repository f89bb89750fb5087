"""A bandit's posterior narrowing: Thompson sampling learns which of three arms pays best, and where."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import torch
from common import save, size
from torch import Tensor

from posterity.exploration import EpsilonGreedy, Greedy, LinearGaussian, Policy, ThompsonSampler
from posterity.plots.style import BLUE, GREEN, MUTED, ORANGE, VERMILION

COLOURS = (BLUE, ORANGE, GREEN)
NOISE = 0.3


def features(x: Tensor) -> Tensor:
    """Powers of the context up to the third."""
    return torch.stack((x, x**2, x**3), 1)


def payoff(x: Tensor) -> Tensor:
    """What the arms pay on average."""
    return torch.stack((0.8 * x, 0.5 - x.square(), -0.2 - 0.6 * x), 1)


def regret(policy: Policy, x: Tensor, noise: Tensor) -> np.ndarray:
    """Cumulative regret."""
    expected, lost = payoff(x), []
    for row, e, extra in zip(features(x), expected, noise):
        numbers, arms = policy.choose(row)
        policy.observe(numbers, e[arms] + extra)
        lost.append((e.max() - e[arms[0]]).item())
    return np.cumsum(lost)


def belief() -> LinearGaussian:
    return LinearGaussian(3, arms=3, prior_precision=0.5)


def main() -> None:
    torch.set_num_threads(1)
    g = torch.Generator().manual_seed(2)
    x, noise = 2 * torch.rand(1000, generator=g) - 1, NOISE * torch.randn(1000, generator=g)
    grid = torch.linspace(-1, 1, 100)
    sampler = ThompsonSampler(belief(), seed=0)
    figure, axes = plt.subplots(1, 4, figsize=(17, 4.2), layout="constrained")
    done, seen = 0, []
    for axis, until in zip(axes[:3], size((10, 60, 400), (2, 4, 6)), strict=True):
        for i in range(done, until):
            numbers, arms = sampler.choose(features(x[i : i + 1]))
            sampler.observe(numbers, payoff(x[i : i + 1])[0, arms] + noise[i])
            seen.append((x[i].item(), (payoff(x[i : i + 1])[0, arms] + noise[i]).item(), int(arms)))
        done = until
        mean, std = sampler.belief.moments(features(grid))
        for arm, colour in enumerate(COLOURS):
            axis.plot(grid, payoff(grid)[:, arm], color=colour, linestyle=":", linewidth=1.2)
            axis.plot(grid, mean[:, arm], color=colour, label=f"arm {arm + 1}")
            low, high = mean[:, arm] - 2 * std[:, arm], mean[:, arm] + 2 * std[:, arm]
            axis.fill_between(grid, low, high, color=colour, alpha=0.18, linewidth=0)
            mine = [(a, b) for a, b, k in seen if k == arm]
            if mine:
                axis.scatter(*zip(*mine), s=7, color=colour, alpha=0.5, linewidths=0)
        axis.set(ylim=(-2.2, 2.2), xlabel="context", title=f"after {until} decisions")
    axes[0].set_ylabel("reward, ± 2 standard deviations (dotted: truth)")
    axes[0].legend(frameon=False, loc="lower right")
    policies = {
        "Thompson sampling": (lambda s: ThompsonSampler(belief(), seed=s), BLUE),
        "greedy": (lambda s: Greedy(belief(), initial=1, seed=s), VERMILION),
        "ε-greedy, 0.1": (lambda s: EpsilonGreedy(belief(), seed=s), MUTED),
    }
    for name, (make, colour) in policies.items():
        paths = []
        for seed in range(size(5, 1)):
            g = torch.Generator().manual_seed(100 + seed)
            visits, extra = (
                2 * torch.rand(size(400, 10), generator=g) - 1,
                NOISE * torch.randn(size(400, 10), generator=g),
            )
            paths.append(regret(make(seed), visits, extra))
        axes[3].plot(np.mean(paths, 0), color=colour, label=name)
    axes[3].set(xlabel="decisions", title="regret, mean of five runs")
    axes[3].legend(frameon=False)
    save(figure, "bandit")


if __name__ == "__main__":
    main()
