"""The wheel: rewards that are rare and large. Thompson sampling finds them; greedy choice never looks.

Contexts are uniform on the unit disk. One arm always pays 1.2 and four pay 1, but beyond radius 0.95 one of the four,
another in each quadrant, pays 50.
"""

from __future__ import annotations

from collections.abc import Callable

import matplotlib.pyplot as plt
import numpy as np
import torch
from common import headline, record, save, size
from torch import Tensor

from posterity.exploration import UCB, EpsilonGreedy, Greedy, LinearGaussian, Policy, ThompsonSampler
from posterity.plots.style import BLUE, GREEN, INK, MUTED, ORANGE, PURPLE, SKY, VERMILION

DELTA, ARMS = 0.95, 5
POLICIES: dict[str, tuple[Callable[[int], Policy], str]] = {
    "Thompson sampling": (lambda s: ThompsonSampler(LinearGaussian(2, ARMS), seed=s), INK),
    "UCB": (lambda s: UCB(LinearGaussian(2, ARMS), seed=s), PURPLE),
    "ε-greedy, 0.1": (lambda s: EpsilonGreedy(LinearGaussian(2, ARMS), epsilon=0.1, seed=s), SKY),
    "greedy": (lambda s: Greedy(LinearGaussian(2, ARMS), initial=3, seed=s), MUTED),
}


def wheel(seed: int, steps: int) -> tuple[Tensor, Tensor]:
    """Contexts (T, 2), and what each arm pays there on average (T, 5), in units of ten."""
    g = torch.Generator().manual_seed(seed)
    radius, angle = torch.rand(steps, generator=g).sqrt(), 2 * torch.pi * torch.rand(steps, generator=g)
    x = torch.stack((radius * angle.cos(), radius * angle.sin()), 1)
    pays = torch.ones(steps, ARMS)
    pays[:, 0] = 1.2
    quadrant = 1 + (x[:, 0] < 0).long() + 2 * (x[:, 1] < 0).long()
    pays[radius > DELTA, quadrant[radius > DELTA]] = 50.0
    return x, pays / 10


def play(policy: Policy, seed: int, steps: int) -> tuple[np.ndarray, Tensor, Tensor]:
    """Cumulative regret in % of that of uniform choice, the contexts, and the arms that were chosen."""
    x, pays = wheel(seed, steps)
    noise = 0.001 * torch.randn(steps, ARMS, generator=torch.Generator().manual_seed(1000 + seed))
    lost, chosen = [], []
    for row, mean, extra in zip(x, pays, noise):
        numbers, arms = policy.choose(row)
        policy.observe(numbers, (mean + extra)[arms])
        lost.append((mean.max() - mean[arms[0]]).item())
        chosen.append(int(arms[0]))
    uniform = (pays.amax(1) - pays.mean(1)).sum().item()
    return 100 * np.cumsum(lost) / uniform, x, torch.tensor(chosen)


def main() -> None:
    torch.set_num_threads(1)
    steps, seeds = size(1000, 40), range(size(5, 1))
    found = {name: [play(make(seed), seed, steps) for seed in seeds] for name, (make, _) in POLICIES.items()}
    figure, axes = plt.subplots(1, 3, figsize=(15, 5.4), width_ratios=(1, 1, 1.45), layout="constrained")
    colours = np.array([MUTED, BLUE, ORANGE, GREEN, VERMILION])
    for axis, name in zip(axes, ("greedy", "Thompson sampling")):
        _, x, chosen = found[name][0]
        late = slice(steps // 2, None)
        axis.add_patch(plt.Circle((0, 0), 1, facecolor="#F4E3C3", edgecolor="none"))
        axis.add_patch(plt.Circle((0, 0), DELTA, facecolor="w", edgecolor=INK, linewidth=0.8))
        axis.scatter(*x[late].T, s=16, c=colours[chosen[late].numpy()], linewidths=0)
        axis.set(xlim=(-1.1, 1.1), ylim=(-1.1, 1.1), aspect="equal", xticks=[], yticks=[])
        axis.set_title(f"{name}: the last {steps - steps // 2} choices")
    for axis, text in zip(axes, ("grey: the safe arm", "a colour: the arm that pays 50\nin the rim of one quadrant")):
        axis.set_xlabel(text)
    ends = {}
    for name, (_, colour) in POLICIES.items():
        paths = np.stack([path for path, _, _ in found[name]])
        ends[name] = [round(float(path[-1]), 1) for path in paths]
        axes[2].plot(paths.mean(0), color=colour, linewidth=2.5)
        axes[2].fill_between(range(steps), paths.min(0), paths.max(0), color=colour, alpha=0.12, linewidth=0)
        axes[2].annotate(f"{name}: {paths[:, -1].mean():.0f} %", (steps, paths[:, -1].mean()), xytext=(6, 0),
                         textcoords="offset points", color=colour, va="center")  # fmt: skip
    axes[2].axhline(100, color=INK, linestyle=":", linewidth=1)
    axes[2].set(xlabel="decisions", xlim=(0, steps * 1.42), xticks=range(0, steps + 1, steps // 5))
    axes[2].set_ylabel("regret, % of uniform choice")
    axes[2].spines[["top", "right"]].set_visible(False)
    axes[2].set_title(f"Regret, mean and range of {len(seeds)} runs")
    headline(figure, "Rare rewards: Thompson sampling explores where it is uncertain; greedy choice never finds them")
    record("bandit", regret_percent_of_uniform=ends)
    save(figure, "bandit")


if __name__ == "__main__":
    main()
