"""The least and the most relevant examples: what the decision boundary rests on, and what it could do without."""

from __future__ import annotations

import math

import torch
from common import digits, headline, record, save, size
from torch import nn

import posterity as po
from posterity.plots.style import empty, panels

COUNT = 12


def main() -> None:
    torch.set_num_threads(1)
    x, y = digits()
    x, y = x[: size(1500, 200)], y[: size(1500, 200)]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    run = po.fit(model, (x, y), method="ivon", epochs=size(40, 1))
    m = po.memory_map(model, run.posterior, (x, y))
    figure, axes = panels(2, COUNT, width=1.0, height=1.45)
    found: dict[str, float] = {}
    for row, (name, least) in zip(axes, (("least", True), ("most", False)), strict=True):
        shown = m.top(COUNT, by="relevance", ascending=least)
        for axis, (_, example) in zip(row, shown.iterrows(), strict=True):
            axis.imshow(x[int(example["id"])].reshape(8, 8).numpy(), cmap="gray_r")
            empty(axis)
            axis.set_title(f"{example['label']}", fontsize=13, loc="center", fontweight="normal")
        found[f"{name} relevant"] = (-shown["loss"]).map(math.exp).mean()
        row[0].set_ylabel(f"{name}\nrelevant", rotation=0, ha="right", va="center", fontsize=13)
    headline(figure, "Ordered by tr Λ: clear cases decide nothing, doubtful ones decide where the boundary runs")
    record("relevant_examples", mean_probability_of_the_label=found)
    save(figure, "relevant_examples")


if __name__ == "__main__":
    main()
