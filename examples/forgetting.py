"""Forgetting and its cure: accuracy on each of five tasks while they are learnt one after the other."""

from __future__ import annotations

import matplotlib.pyplot as plt
import torch
from common import digits, headline, record, save, size
from matplotlib.axes import Axes
from torch import nn

from posterity.adaptation import FineTuning, FunctionalPrior, Joint, KPrior, Scores, learn_stream, permuted

OPTIONS = {"epochs": size(30, 1), "lr": 2e-3, "batch_size": 64, "schedule": "cosine"}


def matrix(axis: Axes, scores: Scores, title: str) -> None:
    """The accuracy matrix: a row after each task, a column for each task."""
    values = scores.accuracy.tril()
    axis.imshow(values.masked_fill(values == 0, float("nan")).numpy(), vmin=0.2, vmax=1, cmap="viridis")
    for i in range(len(values)):
        for j in range(i + 1):
            value = values[i, j].item()
            axis.text(j, i, f"{100 * value:.0f}", ha="center", va="center", color="w" if value < 0.7 else "k")
    axis.set_title(f"{title}\naverage {100 * scores.average:.1f} %, forgetting {100 * scores.forgetting:.1f}")
    axis.set(xlabel="tested on task", xticks=range(len(values)), yticks=range(len(values)))


def main() -> None:
    torch.set_num_threads(1)
    x, y = digits()
    count = size(1347, 200)
    tasks = permuted((x[:count], y[:count]), (x[1347:], y[1347:]), size(5, 2))
    memory = {"size": 40, "prior_precision": 1e-5}
    clipped = {**OPTIONS, "clip": 0.01}
    strategies = {
        "fine-tuning": FineTuning(OPTIONS),
        "K-prior, 40 examples a task": KPrior(clipped, **memory, strength=10.0),
        "FROMP, 40 examples a task": FunctionalPrior(clipped, **memory, tau=5.0),
        "all data at once": Joint(OPTIONS),
    }
    figure, axes = plt.subplots(2, 2, figsize=(10.5, 11.4), layout="constrained")
    found = {}
    for axis, (title, strategy) in zip(axes.flat, strategies.items(), strict=True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10))
        scores = learn_stream(model, tasks, strategy)
        matrix(axis, scores, title)
        found[title] = {"average": scores.average, "forgetting": scores.forgetting}
    for axis in axes[:, 0]:
        axis.set_ylabel("after learning task")
    headline(
        figure,
        "Five tasks, one after the other: fine-tuning forgets the earlier ones; a prior on functions, "
        "with forty examples of each task, remembers them (accuracy, %)",
    )
    record("forgetting", **found)
    save(figure, "forgetting")


if __name__ == "__main__":
    main()
