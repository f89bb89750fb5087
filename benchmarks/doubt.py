"""Where gradients are larger than the curvature that noise meets: `Variational` with and without its doubt.

    python benchmarks/untuned.py --data DATA --prepare PACKED
    python benchmarks/doubt.py --data DATA --packed PACKED --raw results.jsonl
    python benchmarks/doubt.py --collect results.jsonl --out docs/benchmarks

The automatic budget follows squares of gradients (`posterity.optim.gap`). Where the noise measures less curvature than
they promise, P̂ < P, it falls with the fourth power of the ratio. It also falls where P grows late in training.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import untuned
import untuned_tables
import workers
from datasets import folder, tabular
from noise_budgets import FURTHER
from report import header, parser, publish, table
from safetensors.torch import save_file
from torch import Tensor, nn
from untuned_data import Arrays
from untuned_tasks import GPT, TASKS, Attention, Patches, Task, words
from untuned_tasks import table as perceptron

from networks import mlp
from posterity.optim import gap

ALONE, WITH, WITHOUT = "AdamW", "Variational(AdamW)", "Variational(AdamW), without"
TEST = 3000  # examples that made data are tested on

CHOSEN = """
The rule for gradients that are too large was chosen on these tasks, with seed 100 and seed 0 for the series. Figures
are NLL as a multiple of AdamW's. "Without" leaves out this rule and that for networks that learn late, but not the one
for networks [far from fitted](unseen.md). The growth of P is that of the number of effective parameters since the gap
was last learnt.
"""
AGAIN = """
The same kind of series, drawn anew, with seeds that chose nothing.
"""
MEMORISING = """
Small networks on pictures and texts, most of which memorise. Their budgets are not changed.
"""
PERCEPTRONS = """
The perceptrons of [the study without tuning](untuned.md), with the rule. That study is older than the rule.
"""
LATE = """
A transformer learns to add late: its loss begins to fall when half of the steps are over and the noise comes. P grows
many times over then. The rule that a P more than twice as large lowers the budget was chosen on this task.
"""
NEW = """
Tasks that no choice and no other table here has used. [Later ones](unseen.md) have a page of their own.
"""


# ── new data ─────────────────────────────────────────────────────────────────────────────────────────────────────


def series(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noisy orbits of three maps, 40 steps long: which map?"""
    random, orbits = np.random.default_rng(seed), np.zeros((n, 40, 1), "float32")
    labels = random.integers(0, 3, n)
    for i, label in enumerate(labels):
        z, a = random.uniform(0.1, 0.9), random.uniform(3.6, 4)
        for t in range(40):
            if label == 0:
                z = a * z * (1 - z)
            elif label == 1:
                z = a / 2 * min(z, 1 - z)
            else:
                z = np.clip(0.5 + 0.8 * (z - 0.5) * random.choice([-1, 1]) + 0.1 * random.standard_normal(), 0, 1)
            orbits[i, t, 0] = z + 0.15 * random.standard_normal()
    return torch.tensor((orbits - 0.5) / 0.3), torch.tensor(labels)


def waves(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Sums of two waves under noise, 32 steps long: which of four pairs of frequencies?"""
    random = np.random.default_rng(seed)
    labels, phase, time = random.integers(0, 4, n), random.uniform(0, 2 * np.pi, (2, n, 1)), np.arange(32)
    first, second = (np.array(rates)[labels][:, None] for rates in ((0.3, 0.3, 0.5, 0.5), (0.8, 1.1, 0.8, 1.1)))
    x = np.sin(first * time + phase[0]) + np.sin(second * time + phase[1]) + random.standard_normal((n, 32))
    return torch.tensor(x[:, :, None]).float(), torch.tensor(labels)


def sums(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Six digits below four: the sum of the first three, modulo four. A tenth of the labels is drawn by lot."""
    random = np.random.default_rng(seed)
    digits = random.integers(0, 4, (n, 6))
    labels = np.where(random.random(n) < 0.1, random.integers(0, 4, n), digits[:, :3].sum(1) % 4)
    return torch.tensor(digits), torch.tensor(labels)


def shapes(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Discs, squares, diamonds and crosses of any size and place, under noise."""
    random = np.random.default_rng(seed)
    labels, places = random.integers(0, 4, n), np.mgrid[:16, :16]
    pictures = 0.6 * random.standard_normal((n, 1, 16, 16))
    for i, label in enumerate(labels):
        across, down = np.abs(places - random.uniform(5, 11, (2, 1, 1)))
        size = random.uniform(2.5, 5)
        far = np.maximum(across, down)
        cross = (np.minimum(across, down) < 1) & (far < size)
        pictures[i, 0] += (across**2 + down**2 < size**2, far < size, across + down < size, cross)[label]
    return torch.tensor(pictures).float(), torch.tensor(labels)


def made(make: Callable[[int, int], tuple[Tensor, Tensor]], seed: int = 1) -> Callable[[Path], Arrays]:
    def packed(_: Path) -> Arrays:
        (x, y), (test_x, test_y) = make(1500, seed), make(TEST, seed + 1)
        return {"x": x, "y": y, "test_x": test_x, "test_y": test_y}

    return packed


def _cut(x: Tensor, y: Tensor, take: int) -> Arrays:
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    train, test = order[:take], order[take:]
    x = (x - x[train].mean(0)) / x[train].std(0).clamp_min(1e-6)
    return {"x": x[train], "y": y[train], "test_x": x[test], "test_y": y[test]}


def _australian(root: Path) -> Arrays:
    z = tabular(root, "australian_scale")
    return _cut(torch.tensor(z["X"]).float(), torch.tensor(z["y"] > 0).long(), 345)


SOURCES = {
    "series": made(series), "series_again": made(series, 11), "waves": made(waves), "sums": made(sums),
    "shapes": made(shapes), "australian": _australian,
}  # fmt: skip


# ── new networks ─────────────────────────────────────────────────────────────────────────────────────────────────


class Last(nn.Module):
    """A recurrent network that answers at the last step."""

    def __init__(self, kind: type[nn.RNNBase], classes: int, width: int = 48) -> None:
        super().__init__()
        self.body, self.head = kind(1, width, batch_first=True), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.body(x)[0][:, -1])


class Digits(nn.Module):
    """A small transformer over six digits."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(4, width), nn.Parameter(0.02 * torch.randn(1, 6, width))
        self.blocks = nn.Sequential(*(Attention(width, 4, False) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.norm(self.blocks(self.embed(x) + self.place)).mean(1))


class Bag(nn.Module):
    """The average of the words' vectors, and a perceptron."""

    def __init__(self, vocabulary: int, classes: int, width: int = 64) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(vocabulary, width, padding_idx=0), mlp((width, width, classes))

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.embed(x).sum(1) / (x > 0).sum(1, keepdim=True).clamp_min(1))


def convolutions(_: Arrays) -> nn.Module:
    """Two convolutions and a hidden layer."""
    body = (nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU())
    return nn.Sequential(*body, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 4))


SERIES = {"series, LSTM, lr 3e-3": Task("series", lambda _: Last(nn.LSTM, 3), 64, 700)}
AGAIN_DRAWN = {
    "series again, LSTM, lr 3e-3": Task("series_again", lambda _: Last(nn.LSTM, 3), 64, 700),
    "series again, GRU, lr 3e-3": Task("series_again", lambda _: Last(nn.GRU, 3), 64, 700),
}


def small(task: str, steps: int, take: int | None = None, **other: Any) -> Task:
    """A task of the study without tuning, at a size for a CPU."""
    tested = 16_000 if TASKS[task].kind == "tokens" else 1000
    return replace(TASKS[task], steps=steps, take=take, tested=tested, half=False, **other)


SMALL = {
    "UCI sentences, GRU, 600 steps": small("UCI sentences, GRU", 600),
    "rotten tomatoes 2500, GRU": small("rotten tomatoes, GRU", 500, 2500),
    "USPS 1500, BatchNorm CNN": small("USPS, CNN (easy)", 500, 1500, batch=64),
    "CIFAR-10 1500, mixer": small(
        "CIFAR-10 12 000, mixer", 300, 1500, batch=64, network=lambda _: Patches(32, 4, 64, 2, 10, True)
    ),
    "Fashion-MNIST 2000, LeNet": small("Fashion-MNIST 12 000, LeNet", 700, 2000, batch=64),
    "KMNIST 2000, LeNet": small("KMNIST 8000, LeNet", 700, 2000, batch=64),
    "SST-5 3000, convolutions over words": small("SST-5, convolutions over words", 500, 3000),
    "TREC 3000, transformer": small("TREC, transformer", 500, 3000),
    "Shakespeare, GPT, 250 steps": small(
        "Shakespeare characters, GPT", 250, batch=16, network=lambda d: GPT(words(d), 96, 2)
    ),
    "digits 500, BatchNorm CNN": small("digits 500, CNN (easy)", 600),
}
LATE_LEARNERS = {"sums, transformer": Task("sums", lambda _: Digits(), 64, 800)}
UNSEEN = {
    "waves, GRU, lr 3e-3": Task("waves", lambda _: Last(nn.GRU, 4), 64, 700),
    "UCI sentences, bag of words": Task("sentences", lambda d: Bag(words(d), 2), 64, 500),
    "shapes, convolutions": Task("shapes", convolutions, 64, 600),
    "shapes, convolutions, 60 steps (too short)": Task("shapes", convolutions, 64, 60),
    "australian 345, perceptron": Task("australian", perceptron((64, 64)), 32, 600),
}
FROM_BUDGETS = [
    "kin8nm, perceptron", "power, perceptron", "concrete, perceptron", "MNIST 3000, perceptron",
    "rough amounts 5, perceptron", "rough amounts 6, perceptron", "rough classes 2, perceptron",
]  # fmt: skip
PERCEPTRON_NAMES = [name for name, task in TASKS.items() if not task.chosen_on and "perceptron" in name]
ALL = {**TASKS, **{name: FURTHER[name] for name in FROM_BUDGETS if name in FURTHER}}
ALL |= SERIES | LATE_LEARNERS | UNSEEN | AGAIN_DRAWN | SMALL


# ── runs and tables ──────────────────────────────────────────────────────────────────────────────────────────────


def jobs() -> list[tuple[str, str, int]]:
    """All runs, the most wanted first."""
    both, all_three = (ALONE, WITH), (ALONE, WITHOUT, WITH)
    wanted = [(t, m, s) for s in range(3) for t in PERCEPTRON_NAMES for m in both]
    wanted += [(t, m, 0) for t in SERIES for m in all_three]
    wanted += [(t, m, 100) for t in FROM_BUDGETS for m in all_three]
    wanted += [(t, m, s) for s in range(4) for t in LATE_LEARNERS for m in all_three]
    wanted += [(t, m, s) for s in (1, 2) for t in AGAIN_DRAWN for m in all_three]
    wanted += [(t, m, s) for s in (0, 1) for t in SMALL for m in all_three]
    return wanted + [(t, m, s) for s in range(3) for t in UNSEEN for m in both]


def run(packed: Path, toy: int | None, name: str, method: str, seed: int) -> dict[str, Any]:
    """One training."""
    how, rate = WITH if method == WITHOUT else method, 3e-3 if "3e-3" in name else 1e-3
    untuned.TASKS[name], untuned.METHODS[how] = ALL[name], {"lr": rate, "variational": how == WITH}
    kept, gap.DOUBT = gap.DOUBT, 0 if method == WITHOUT else gap.DOUBT
    try:
        return untuned.run(packed, toy, name, how, seed) | {"method": method}
    finally:
        gap.DOUBT = kept


def three(found: Mapping[tuple[str, str, int], dict[str, Any]], tasks: Iterable[str], seeds: Iterable[int]) -> str:
    """AdamW, and the ratios to it without and with the rule, for each task and seed."""
    rows: list[list[object]] = []
    for name, seed in itertools.product(tasks, seeds):
        if all((name, method, seed) in found for method in (ALONE, WITH, WITHOUT)):
            scores = {method: found[name, method, seed]["scores"] for method in (ALONE, WITHOUT, WITH)}
            nll, accuracy = ([score[k] for score in scores.values()] for k in (1, 0))
            ratios = (f"{each / nll[0]:.3f}" for each in nll[1:])
            grown = found[name, WITH, seed]["grown"]
            rows.append([name, seed, f"{nll[0]:.3f}", *ratios, *(f"{each:.3f}" for each in accuracy), f"{grown:.2f}"])
    heads = ["task", "seed", "NLL of AdamW", "without: ratio", "with: ratio"]
    return table([*heads, "accuracy (R²) of AdamW", "without", "with", "growth of P"], rows)


def tables(lines: list[dict[str, Any]]) -> str:
    """What chose the rule, and what it does elsewhere."""
    found = {(line["task"], line["method"], line["seed"]): line for line in lines}
    beside = functools.partial(untuned_tables.compared, found, baseline=ALONE, method=WITH, table=table)
    parts = {
        "Tasks that chose the rule": (CHOSEN, three(found, [*SERIES, *FROM_BUDGETS], (0, 100))),
        "A network that learns late": (LATE, three(found, LATE_LEARNERS, range(4))),
        "Series drawn anew": (AGAIN, three(found, AGAIN_DRAWN, (1, 2))),
        "Small networks": (MEMORISING, three(found, SMALL, (0, 1))),
        "Reported perceptrons": (PERCEPTRONS, beside(names=PERCEPTRON_NAMES)),
        "New tasks": (NEW, beside(names=list(UNSEEN))),
    }
    return "\n".join(f"### {title}\n{words_of}\n{text}" for title, (words_of, text) in parts.items())


def study(
    name: str,
    title: str,
    tables: Callable[[list[dict[str, Any]]], str],
    sources: Mapping[str, Callable[[Path], Arrays]],
    jobs: list[tuple[str, str, int]],
    run: Callable[..., dict[str, Any]],
    about: str | None,
) -> None:
    """The command line of a study on packed data: pack its own, and run what is left, or write its page."""
    arguments = workers.options(parser(about))
    arguments.add_argument("--packed", help="the packed data of untuned.py")
    options = arguments.parse_args()
    if options.collect:
        lines = workers.results(options.collect)
        publish(name, header(title, lines) + "\n" + tables(lines), options.out)
        return
    for source, make in sources.items():
        path = Path(options.packed) / f"{source}.safetensors"
        if not path.exists():
            save_file({k: t.contiguous() for k, t in make(folder(options.data)).items()}, path)
    workers.share(jobs, functools.partial(run, Path(options.packed), options.toy), options)


if __name__ == "__main__":
    study("doubt", "Where gradients are too large", tables, SOURCES, jobs(), run, __doc__)
