"""Filters and weights of a Bayesian network beside those of a point: what the data did not decide stays wide."""

from __future__ import annotations

import torch
from common import digits, headline, record, save, size
from torch import nn

import posterity as po


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(384, 10),
    )  # fmt: skip


def main() -> None:
    torch.set_num_threads(1)
    x, y = digits()
    train = (x[: size(1200, 100)], y[: size(1200, 100)])
    point = po.fit(network(), train, method="adamw", epochs=size(30, 1)).model
    ivon = po.fit(network(), train, method="ivon", epochs=size(60, 1), beta2="auto")
    weights = dict(point.named_parameters())
    figure = po.plots.filter_distributions(ivon.posterior, "1.weight", weights, count=size(10, 3))
    signal = {
        name: (m.square().mean() / ivon.posterior.variance[name].mean()).sqrt().item()
        for name, m in ivon.posterior.mean.items()
        if m.dim() > 1
    }
    headline(
        figure,
        f"AdamW's filters are numbers; IVON's have an uncertainty, here {1 / signal['1.weight']:.0%} of their size",
    )
    record("filters", mean_over_standard_deviation=signal)
    save(figure, "filters")
    figure = po.plots.weight_distributions(ivon.posterior, weights)
    headline(
        figure,
        "The data decide the first layer: its weights are "
        f"{signal['1.weight']:.0f} times as large as their uncertainty, those of the last only "
        f"{signal['7.weight']:.1f} times",
    )
    save(figure, "weight_distributions")


if __name__ == "__main__":
    main()
