"""MC dropout on a LeNet for digits, with all the data and with a quarter: a point, averaged weights, averaged masks."""

from __future__ import annotations

import torch
from common import digits, save, size
from torch import Tensor, nn

import posterity as po
from posterity.plots.style import BLUE, MUTED, ORANGE, panels

METHODS = {"no dropout": MUTED, "dropout, weights averaged": ORANGE, "dropout, masks averaged": BLUE}


def lenet(p: float) -> nn.Module:
    """LeNet for images of eight pixels a side, with dropout after every layer."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 20, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(p),
        nn.Conv2d(20, 50, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(p),
        nn.Flatten(), nn.Linear(200, 100), nn.ReLU(), nn.Dropout(p), nn.Linear(100, 10),
    )  # fmt: skip


def scores(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], epochs: int) -> list[tuple[float, float]]:
    """Test error (%) and NLL of the three methods."""
    options = {"epochs": epochs, "lr": 2e-3, "batch_size": 32}
    plain = po.fit(lenet(0.0), train, method="adamw", **options)
    masked = po.fit(lenet(0.2), train, method="dropout", **options)
    answers = (
        po.predict(plain.model, plain.posterior, test[0]),
        po.predict(masked.model, masked.posterior, test[0], samples=0),
        po.predict(masked.model, masked.posterior, test[0], samples=size(100, 3)),
    )
    return [(100 * (1 - po.metrics.accuracy(p.probs, test[1])), po.metrics.nll(p.probs, test[1])) for p in answers]


def main() -> None:
    torch.set_num_threads(1)
    x, y = digits()
    test, all_of_it = (x[1200:], y[1200:]), size(1200, 80)
    shares = {"all the data": all_of_it, "a quarter": all_of_it // 4}
    found = {
        name: scores((x[:count], y[:count]), test, size(30, 1) * all_of_it // count) for name, count in shares.items()
    }  # as many steps with little data as with much
    figure, (axes,) = panels(1, 2, width=5.0, height=3.8)
    for k, (axis, name) in enumerate(zip(axes, ("test error (%)", "test NLL (nats)"), strict=True)):
        for j, (method, colour) in enumerate(METHODS.items()):
            heights = [found[share][j][k] for share in shares]
            bars = axis.bar([i + 0.27 * (j - 1) for i in range(2)], heights, 0.25, color=colour, label=method)
            axis.bar_label(bars, fmt="%.1f" if k == 0 else "%.3f", fontsize=9, padding=2)
        axis.set_xticks(range(2), list(shares))
        axis.set(ylabel=name)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, loc="upper left")
    axes[0].margins(y=0.25)
    figure.suptitle("LeNet on scikit-learn's digits, one seed; as many steps with a quarter of the data as with all")
    save(figure, "mc_dropout")


if __name__ == "__main__":
    main()
