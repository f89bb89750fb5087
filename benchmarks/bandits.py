"""Bandits: regret of Thompson sampling on exact, neural-linear and variational beliefs, beside simpler policies.

Linear: four arms, rewards linear in five features, noise 0.5. The slope is that of log regret over log steps, in the
second half.

Wheel: contexts uniform on the unit disk. One arm always pays 1.2, four pay 1, but beyond radius δ one of the four,
another in each quadrant, pays 50: rare and worth looking for. Rewards are learnt in units of ten.

Classification as a bandit: arms are classes, the reward is 1 for the right one and 0 otherwise, and the label stays
hidden.

Regret is in percent of that of uniform choice on the same contexts. IVON's settings are those that did best on banana
among eleven tried on seed 1000 (six of them on the wheel too, where another did better); NeuralLinear's and the
linear ones are the first that were tried.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import datasets
import numpy as np
import report
import torch
from torch import Tensor

from networks import mlp
from posterity.exploration import (
    UCB,
    EpsilonGreedy,
    Greedy,
    LinearGaussian,
    NeuralLinear,
    Policy,
    ThompsonSampler,
    VariationalNetwork,
)


@dataclass(frozen=True)
class Problem:
    """Contexts (T, D), what each arm pays in each of them (T, arms), and how that is on average."""

    contexts: Tensor
    rewards: Tensor
    expected: Tensor

    def regret(self, policy: Policy) -> np.ndarray:
        """Cumulative regret of a policy, decision by decision."""
        lost = []
        for x, r, e in zip(self.contexts, self.rewards, self.expected):
            numbers, arms = policy.choose(x)
            policy.observe(numbers, r[arms])
            lost.append((e.max() - e[arms[0]]).item())
        return np.cumsum(lost)

    def uniform(self) -> float:
        """Expected regret of choosing at random."""
        return (self.expected.max(1).values - self.expected.mean(1)).sum().item()


def linear(seed: int, steps: int) -> Problem:
    g = torch.Generator().manual_seed(seed)
    weights = torch.randn(5, 4, generator=g).double()
    x = torch.randn(steps, 5, generator=g).double()
    expected = x @ weights
    return Problem(x, expected + 0.5 * torch.randn(steps, 4, generator=g).double(), expected)


def wheel(delta: float) -> Callable[[int, int], Problem]:
    def made(seed: int, steps: int) -> Problem:
        g = torch.Generator().manual_seed(seed)
        radius, angle = torch.rand(steps, generator=g).sqrt(), 2 * torch.pi * torch.rand(steps, generator=g)
        x = torch.stack((radius * angle.cos(), radius * angle.sin()), 1)
        expected = torch.ones(steps, 5)
        expected[:, 0] = 1.2
        quadrant = 1 + (x[:, 0] < 0).long() + 2 * (x[:, 1] < 0).long()
        outside = radius > delta
        expected[outside, quadrant[outside]] = 50.0
        return Problem(x, (expected + 0.01 * torch.randn(steps, 5, generator=g)) / 10, expected / 10)

    return made


def classification(x: np.ndarray, y: np.ndarray) -> Callable[[int, int], Problem]:
    inputs = torch.tensor((x - x.mean(0)) / (x.std(0) + 1e-6)).float()
    labels = torch.tensor(np.unique(y, return_inverse=True)[1])

    def made(seed: int, steps: int) -> Problem:
        rows = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))[:steps]
        rewards = torch.nn.functional.one_hot(labels[rows]).float()
        return Problem(inputs[rows], rewards, rewards)

    return made


def problems(options: argparse.Namespace) -> dict[str, Callable[[int, int], Problem]]:
    root = datasets.folder(options.data)
    banana, adult = datasets.tabular(root, "banana"), datasets.tabular(root, "adult_a7a")
    usps = dict(np.load(root / "usps" / "usps.npz"))
    return {
        "linear": linear,
        "wheel 0.95": wheel(0.95),
        "wheel 0.99": wheel(0.99),
        "banana": classification(*_columns(banana)),
        "adult": classification(*_columns(adult)),
        "usps": classification(*_columns(usps)),
    }


def _columns(arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels, of the training part where there is one."""
    x = next(arrays[name] for name in ("X", "x", "X_train", "x_train", "train_x") if name in arrays)
    y = next(arrays[name] for name in ("y", "Y", "y_train", "train_y") if name in arrays)
    return x.reshape(len(x), -1).astype(np.float64), y.reshape(-1)


def exact(p: Problem) -> LinearGaussian:
    return LinearGaussian(p.contexts.shape[1], p.rewards.shape[1])


def features(p: Problem, seed: int) -> NeuralLinear:
    torch.manual_seed(seed)
    d, arms = p.contexts.shape[1], p.rewards.shape[1]
    return NeuralLinear(mlp((d, 50, 50, arms)), d, every=100, steps=100, lr=3e-3, seed=seed)


def variational(p: Problem, seed: int) -> VariationalNetwork:
    torch.manual_seed(seed)
    d, arms = p.contexts.shape[1], p.rewards.shape[1]
    network = mlp((d, 50, 50, arms))
    return VariationalNetwork(network, d, noise_precision=2.0, hess_init=3.0, lr=0.3, seed=seed)


POLICIES: dict[str, Callable[[Problem, int], Policy]] = {
    "linear, Thompson": lambda p, s: ThompsonSampler(exact(p), seed=s),
    "linear, UCB": lambda p, s: UCB(exact(p), seed=s),
    "linear, greedy": lambda p, s: Greedy(exact(p), initial=3, seed=s),
    "linear, ε-greedy 0.1": lambda p, s: EpsilonGreedy(exact(p), epsilon=0.1, seed=s),
    "NeuralLinear, Thompson": lambda p, s: ThompsonSampler(features(p, s), initial=3, seed=s),
    "NeuralLinear, greedy": lambda p, s: Greedy(features(p, s), initial=3, seed=s),
    "IVON, Thompson": lambda p, s: ThompsonSampler(variational(p, s), initial=3, seed=s),
}


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    torch.set_num_threads(1)
    known = problems(options)
    for name in options.problems:
        steps = options.steps
        for seed in range(options.first, options.first + options.seeds):
            problem = known[name](seed, steps)
            for policy in options.policies:
                if name == "linear" and not policy.startswith("linear"):
                    continue
                start = time.process_time()
                path = problem.regret(POLICIES[policy](problem, seed))
                half = np.arange(steps // 2, steps)
                slope = float(np.polyfit(np.log(half + 1), np.log(path[half] + 1e-12), 1)[0])
                yield {
                    "problem": name, "policy": policy, "seed": seed, "steps": len(path), "regret": float(path[-1]),
                    "relative": 100 * float(path[-1]) / problem.uniform(), "slope": slope,
                    "milliseconds": 1000 * (time.process_time() - start) / len(path),
                }  # fmt: skip


def publish(lines: list[report.Line], options: argparse.Namespace) -> None:
    seeds = {name: sorted({line["seed"] for line in lines if line["problem"] == name}) for name in _names(lines)}
    steps = {name: {line["steps"] for line in lines if line["problem"] == name} for name in seeds}
    sizes = "; ".join(f"{n}: {len(s)} seeds, {'/'.join(map(str, steps[n]))} decisions" for n, s in seeds.items())
    text = report.header("Bandits", lines, studies=sizes)
    text += f"\n{__doc__.partition(chr(10))[2].strip()}\n"
    text += "\n### Linear rewards\n\n" + _linear_table([line for line in lines if line["problem"] == "linear"])
    others = [name for name in _names(lines) if name != "linear"]
    policies = list(dict.fromkeys(line["policy"] for line in lines if line["problem"] != "linear"))
    rows = []
    for policy in policies:
        mine = {n: [ln for ln in lines if ln["problem"] == n and ln["policy"] == policy] for n in others}
        cells = [_cell(found, len(seeds[name])) for name, found in mine.items()]
        cost = statistics.fmean(line["milliseconds"] for found in mine.values() for line in found)
        rows.append([policy, *cells, f"{cost:.1f}"])
    text += "\n### Regret in % of uniform choice\n\n"
    text += report.table(["belief, policy", *others, "CPU ms a decision"], rows)
    report.publish("bandits", text, options.out)


def _cell(found: list[report.Line], wanted: int) -> str:
    """Relative regret, and of how many seeds where some are missing."""
    shown = report.spread([line["relative"] for line in found], 1) if found else ""
    return shown if len(found) in (0, wanted) else f"{shown} ({len(found)} seeds)"


def _names(lines: list[report.Line]) -> list[str]:
    return list(dict.fromkeys(line["problem"] for line in lines))


def _linear_table(lines: list[report.Line]) -> str:
    """Regret and slope, and how often Thompson sampling on the same seed did better."""
    thompson = {line["seed"]: line["regret"] for line in lines if line["policy"] == "linear, Thompson"}
    rows = []
    for policy in dict.fromkeys(line["policy"] for line in lines):
        mine = [line for line in lines if line["policy"] == policy]
        better = sum(thompson[line["seed"]] < line["regret"] for line in mine)
        gap = [line["regret"] - thompson[line["seed"]] for line in mine]
        beside = "" if policy == "linear, Thompson" else f"{report.spread(gap, 1)}, {better} of {len(mine)}"
        regret, slope = ([line[key] for line in mine] for key in ("regret", "slope"))
        rows.append([policy, report.spread(regret, 1), report.spread(slope, 2), beside])
    return report.table(["belief, policy", "regret", "slope", "above Thompson's, paired; seeds where it is"], rows)


def main() -> None:
    arguments = report.parser(__doc__)
    names = ["linear", "wheel 0.95", "wheel 0.99", "banana", "adult", "usps"]
    arguments.add_argument("--problems", nargs="+", default=names, choices=names)
    arguments.add_argument("--policies", nargs="+", default=list(POLICIES), choices=list(POLICIES))
    arguments.add_argument("--seeds", type=int, default=5, help="number of seeds")
    arguments.add_argument("--first", type=int, default=0, help="the first of them")
    arguments.add_argument("--steps", type=int, default=2000, help="decisions")
    report.study(arguments.parse_args(), runs, publish)


if __name__ == "__main__":
    main()
