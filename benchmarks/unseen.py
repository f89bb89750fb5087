"""Tasks that were drawn once all rules of `Variational` were fixed, beside AdamW.

    python benchmarks/untuned.py --data DATA --prepare PACKED
    python benchmarks/unseen.py --data DATA --packed PACKED --raw results.jsonl
    python benchmarks/unseen.py --collect results.jsonl --out docs/benchmarks

Schedule, learning rate and scores are those of `untuned.py`: five per cent of warm-up and a cosine to zero, at 1e-3.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import doubt
import noise_budgets
import numpy as np
import torch
import untuned
import untuned_tables
from datasets import uci_regression
from noise_budgets import flat
from report import table
from torch import Tensor, nn
from untuned_data import Arrays
from untuned_tasks import Encoder, Recurrent, Task, WordCNN, outputs, resnet, words
from untuned_tasks import table as perceptron

from networks import mlp

FIRST = """
These tasks were written down, and run once, when the rule for networks that [learn late](doubt.md) was fixed. Losses on
some of them led to the rule for networks that are far from fitted. Its constants were chosen on their seeds 0 and 1, on
small networks of [that page](doubt.md) that memorise, and on [tasks](noise_budgets.md) that earlier constants were
chosen on. "Late" marks networks whose loss stays where it was for a good part of training.
"""
SECOND = """
These were written down after that. Nothing was chosen on them.
"""
THIRD = """
Most of the tasks above are easy or far from fitted. These, which overfit more, were written down last, when the rule
for networks far from fitted had its present form. Their data are those of other pages, with other networks and sizes.
"""
REPORTED = """
Networks of [the study without tuning](untuned.md) that a CPU trains in minutes, with all rules. That study is older.
[Its perceptrons](doubt.md) are on another page.
"""
NUDGED = "AdamW, nudged"
CHANCE = """
Some networks that predict mean and variance are chaotic. AdamW against itself with all initial weights multiplied by
1.000001, mean over seeds of the absolute difference:
"""


# ── data ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def parity(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Twelve signs: the parity of three of them. One label in twenty is wrong."""
    random = np.random.default_rng(seed)
    signs = random.choice([-1.0, 1.0], (n, 12))
    labels = (signs[:, :3].prod(1) > 0) ^ (random.random(n) < 0.05)
    return torch.tensor(signs).float(), torch.tensor(labels).long()


def ratings(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Pairs of a person and a film, and whether the one likes the other."""
    tastes, random = np.random.default_rng(0), np.random.default_rng(seed)
    people, films = tastes.standard_normal((150, 3)), tastes.standard_normal((100, 3))
    person, film = random.integers(0, 150, n), random.integers(0, 100, n)
    likes = random.random(n) < 1 / (1 + np.exp(-1.5 * (people[person] * films[film]).sum(1)))
    return torch.tensor(np.stack([person, 150 + film], 1)), torch.tensor(likes).long()


def clouds(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Twenty noisy points on a circle, a square, a line or two blobs."""
    random = np.random.default_rng(seed)
    labels, points = random.integers(0, 4, n), np.zeros((n, 20, 2), "float32")
    for i, label in enumerate(labels):
        angle, along = random.uniform(0, 2 * np.pi, 20), random.uniform(-1, 1, 20)
        circle = np.stack([np.cos(angle), np.sin(angle)], 1)
        square = circle / np.abs(circle).max(1, keepdims=True)
        line = np.stack([along, random.uniform(-1, 1) * along], 1)
        blobs = random.choice([-0.7, 0.7], (20, 1)) * np.ones((1, 2))
        points[i] = random.uniform(0.5, 1.5) * (circle, square, line, blobs)[label]
    return torch.tensor(points + 0.25 * random.standard_normal(points.shape)).float(), torch.tensor(labels)


def chirps(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Waves under noise, 64 steps long, that get faster, slower, louder, quieter or stay."""
    random, time = np.random.default_rng(seed), np.linspace(0, 1, 64)
    labels = random.integers(0, 5, n)
    turn = np.where(labels == 0, 1.0, np.where(labels == 1, -1.0, 0.0))[:, None] * random.uniform(2, 5, (n, 1))
    swell = np.where(labels == 2, 1.0, np.where(labels == 3, -1.0, 0.0))[:, None] * (time - 0.5)
    rate, start = random.uniform(5, 8, (n, 1)), random.uniform(0, 2 * np.pi, (n, 1))
    wave = np.exp(swell) * np.sin(2 * np.pi * (rate * time + turn * time**2 / 2) + start)
    return torch.tensor(wave + 0.7 * random.standard_normal(wave.shape)).float()[:, None], torch.tensor(labels)


def counts(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Twelve letters: how often the first of them comes again, up to four times. One label in twenty is wrong."""
    random = np.random.default_rng(seed)
    letters = random.integers(0, 5, (n, 12))
    again = np.minimum((letters[:, 1:] == letters[:, :1]).sum(1), 4)
    return torch.tensor(letters), torch.tensor(np.where(random.random(n) < 0.05, random.integers(0, 5, n), again))


def spirals(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Three spirals under noise, in the first two of six columns."""
    random = np.random.default_rng(seed)
    labels, along = random.integers(0, 3, n), random.uniform(0.2, 1, n)
    angle = 5 * along + 2 * np.pi * labels / 3 + 0.35 * random.standard_normal(n)
    x = 0.5 * random.standard_normal((n, 6))
    x[:, 0], x[:, 1] = 2 * along * np.cos(angle), 2 * along * np.sin(angle)
    return torch.tensor(x).float(), torch.tensor(labels)


def swings(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Thirty noisy places of a pendulum: how fast is it?"""
    random, time = np.random.default_rng(seed), np.arange(30) / 10
    rate, start = random.uniform(0.5, 4, (n, 1)), random.uniform(0, 2 * np.pi, (n, 1))
    x = random.uniform(0.5, 1.5, (n, 1)) * np.sin(rate * time + start) + 0.2 * random.standard_normal((n, 30))
    return torch.tensor(x).float()[:, :, None], torch.tensor((rate[:, 0] - 2.25) / 1.01).float()


def _amounts(name: str) -> Callable[[Path], Arrays]:
    def packed(root: Path) -> Arrays:
        z = uci_regression(root, name)
        train, test = z["train_idx"][0], z["test_idx"][0]
        x, y = torch.from_numpy(z["X"]).float(), torch.from_numpy(z["y"]).float().flatten()
        x, y = ((t - t[train].mean(0)) / t[train].std(0).clamp_min(1e-6) for t in (x, y))
        return {"x": x[train], "y": y[train], "test_x": x[test], "test_y": y[test]}

    return packed


SOURCES = {
    "parity": doubt.made(parity, 31), "sums_again": doubt.made(doubt.sums, 31), "ratings": doubt.made(ratings, 31),
    "clouds": doubt.made(clouds, 31), "chirps": doubt.made(chirps, 31),
    "counts": doubt.made(counts, 47), "spirals": doubt.made(spirals, 47), "swings": doubt.made(swings, 47),
    "boston": _amounts("boston"), "energy": _amounts("energy"), "yacht": _amounts("yacht"),
    "naval": _amounts("naval"),
}  # fmt: skip


# ── networks ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Adder(nn.Module):
    """A recurrent network over digits or letters."""

    def __init__(self, letters: int, classes: int, kind: type[nn.RNNBase] = nn.GRU, width: int = 64) -> None:
        super().__init__()
        self.embed, self.body = nn.Embedding(letters, width), kind(width, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.body(self.embed(x))[0][:, -1])


class Factors(nn.Module):
    """The product of what is known of a person and of a film."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(250, width), nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.embed(x).prod(1))


class Set(nn.Module):
    """The same perceptron for each point, and another for their mean."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.each, self.head = mlp((2, width, width)), mlp((width, width, 4))

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.each(x).mean(1))


def along(_: Arrays) -> nn.Module:
    """Three convolutions along time, with group normalisation."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in ((1, 32), (32, 64), (64, 64)):
        layers += [nn.Conv1d(fan_in, fan_out, 5, padding=2), nn.GroupNorm(4, fan_out), nn.ReLU(), nn.MaxPool1d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, 5))


TASKS = {
    "parity, perceptron (late)": Task("parity", perceptron((128, 128)), 64, 1000),
    "sums again, GRU (late)": Task("sums_again", lambda _: Adder(4, 4), 64, 1000),
    "ratings, factors": Task("ratings", lambda _: Factors(), 64, 1000),
    "clouds, sets of points": Task("clouds", lambda _: Set(), 64, 800),
    "chirps, convolutions": Task("chirps", along, 64, 600),
    "chirps, convolutions, 60 steps (too short)": Task("chirps", along, 64, 60),
    "boston, perceptron": Task("boston", perceptron((64, 64)), 32, 800, "amounts"),
    "energy, perceptron": Task("energy", perceptron((64, 64)), 32, 1500, "amounts"),
    "yacht, perceptron": Task("yacht", perceptron((64, 64)), 32, 800, "amounts"),
    "rotten tomatoes 2500, bag of words": doubt.small(
        "rotten tomatoes, GRU", 600, 2500, network=lambda d: doubt.Bag(words(d), 2)
    ),
    "clinc150 3000, convolutions over words": doubt.small(
        "clinc150, transformer", 700, 3000, batch=64, network=lambda d: WordCNN(words(d), 150)
    ),
    "SST-5 3000, transformer": doubt.small(
        "SST-5, convolutions over words", 500, 3000, network=lambda d: Encoder(words(d), 5, 64)
    ),
    "TREC 1500, LSTM": doubt.small(
        "TREC, transformer", 400, 1500, network=lambda d: Recurrent(words(d), 6, nn.LSTM, 64)
    ),
    "KMNIST 1000, perceptron": doubt.small(
        "KMNIST 8000, LeNet", 700, 1000, batch=64, network=lambda _: nn.Sequential(nn.Flatten(), mlp((784, 128, 10)))
    ),
}
LATER = {
    "counts, LSTM": Task("counts", lambda _: Adder(5, 5, nn.LSTM), 64, 900),
    "counts, LSTM, 300 steps (too short)": Task("counts", lambda _: Adder(5, 5, nn.LSTM), 64, 300),
    "spirals, perceptron": Task("spirals", perceptron((128, 128)), 64, 1000),
    "swings, GRU": Task("swings", lambda _: doubt.Last(nn.GRU, 2), 64, 700, "amounts"),
    "MNIST 1000, LeNet": doubt.small("KMNIST 8000, LeNet", 500, 1000, batch=64, data="mnist"),
    "Fashion-MNIST 1500, ResNet": doubt.small(
        "Fashion-MNIST 12 000, LeNet", 250, 1500, batch=64, network=lambda _: resnet(1, 8, 10, 1)
    ),
    "USPS 1000, perceptron": doubt.small(
        "USPS, CNN (easy)", 600, 1000, batch=64, network=lambda d: nn.Sequential(nn.Flatten(), mlp((256, 128, 10)))
    ),
    "banking77 3000, transformer": doubt.small(
        "clinc150, transformer", 600, 3000, batch=64, data="banking", network=lambda d: Encoder(words(d), 77, 64)
    ),
    "SST-2 3000, GRU": doubt.small(
        "rotten tomatoes, GRU", 500, 3000, data="sst2", network=lambda d: Recurrent(words(d), 2, nn.GRU, 64)
    ),
    "IMDB 2000, convolutions over words": doubt.small(
        "IMDB, transformer", 400, 2000, network=lambda d: WordCNN(words(d), 2, 50)
    ),
    "Amazon reviews 2000, bag of words": doubt.small(
        "rotten tomatoes, GRU", 600, 2000, data="amazon", network=lambda d: doubt.Bag(words(d), int(d["y"].max()) + 1)
    ),
    "naval 2000, perceptron": Task("naval", perceptron((64, 64)), 64, 1000, "amounts", take=2000),
}

LAST = {
    "MNIST 2000, six layers": Task("mnist", flat((128,) * 5), 64, 800, take=2000),
    "CIFAR-10 3000, convolutions": doubt.small(
        "CIFAR-10 12 000, mixer", 600, 3000, batch=64, network=noise_budgets.convolutions
    ),
    "SST-2 2500, transformer": doubt.small(
        "rotten tomatoes, GRU", 500, 2500, data="sst2", network=lambda d: Encoder(words(d), 2, 64)
    ),
    "Amazon reviews 2500, LSTM": doubt.small(
        "rotten tomatoes, GRU", 400, 2500, data="amazon", network=lambda d: Recurrent(words(d), outputs(d), nn.LSTM, 48)
    ),
    "electricity 1500, five layers": Task("electricity", perceptron((96,) * 4), 64, 1200, take=1500),
    "abalone 600, perceptron": Task("abalone", perceptron((256, 256)), 32, 900, take=600),
    "a7a 1500, perceptron": Task("a7a", perceptron((256, 256)), 64, 1000, take=1500),
    "Fashion-MNIST 1000, perceptron": Task("fashion", flat((256, 256, 256)), 64, 700, take=1000),
}
AGAIN = {
    name: untuned.TASKS[name]
    for name in (
        "UCI sentences, GRU", "KMNIST 8000, LeNet", "IMDB, transformer", "rotten tomatoes, GRU",
        "SST-5, convolutions over words", "clinc150, transformer",
    )
}  # fmt: skip

AMOUNTS = [name for name, task in (LATER | TASKS).items() if task.kind == "amounts"]


def jobs() -> list[tuple[str, str, int]]:
    """All runs, the most wanted first."""
    methods, rest = (doubt.ALONE, doubt.WITH), [(t, NUDGED, seed) for seed in range(3) for t in AMOUNTS]
    both = [(t, method, seed) for seed in range(3) for t in (*LAST, *LATER, *TASKS) for method in methods]
    return both + rest + [(t, method, seed) for seed in range(3) for t in AGAIN for method in methods]


def run(packed: Path, toy: int | None, name: str, method: str, seed: int) -> dict[str, Any]:
    """One training."""
    task = (TASKS | LATER | LAST | AGAIN)[name]
    untuned.TASKS[name] = replace(task, network=nudged(task.network)) if method == NUDGED else task
    return untuned.run(packed, toy, name, doubt.ALONE if method == NUDGED else method, seed) | {"method": method}


def nudged(make: Callable[[Arrays], nn.Module]) -> Callable[[Arrays], nn.Module]:
    """The same network with all weights multiplied by 1.000001."""

    def network(data: Arrays) -> nn.Module:
        model = make(data)
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1.000001)
        return model

    return network


def chance(found: dict[tuple[str, str, int], dict[str, Any]]) -> str:
    """How far AdamW is from itself after a nudge."""
    rows = []
    for name in AMOUNTS:
        pairs = [[found[name, method, s]["scores"] for method in (doubt.ALONE, NUDGED)] for s in range(3)]
        r2, nll = (statistics.mean(abs(a[k] - b[k]) for a, b in pairs) for k in (0, 1))
        rows.append([name, f"{100 * r2:.2f}", f"{nll:.3f}"])
    return table(["task", "R², points", "NLL"], rows)


def tables(lines: list[dict[str, Any]]) -> str:
    """Both draws of tasks, and what chance does to regressions."""
    found = {(line["task"], line["method"], line["seed"]): line for line in lines}
    parts = {
        "First tasks": (FIRST, TASKS),
        "Later tasks": (SECOND, LATER),
        "Last tasks": (THIRD, LAST),
        "Reported networks": (REPORTED, AGAIN),
    }
    texts = [
        f"### {title}\n{about}\n{untuned_tables.compared(found, list(tasks), doubt.ALONE, doubt.WITH, table)}"
        for title, (about, tasks) in parts.items()
    ]
    return "\n".join([*texts, f"### How much is chance\n{CHANCE}\n{chance(found)}\n"])


if __name__ == "__main__":
    doubt.study("unseen", "New tasks", tables, SOURCES, jobs(), run, __doc__)
