"""Sensitivity during training: wrong labels stay hard, and the model leans on them, long before they are learnt."""

from __future__ import annotations

from collections.abc import Callable

import torch
from common import digits, save, size
from torch import Tensor, nn

import posterity as po
from posterity.learning import Callback, Moment
from posterity.memory import MemoryTracker
from posterity.plots.style import BLUE, VERMILION, panels


class EveryEpoch(Callback):
    """Asks a fresh tracker after each epoch, and keeps the scores of every example."""

    def __init__(self, ask: Callable[[Moment], MemoryTracker], every: int) -> None:
        self.ask, self.every = ask, every
        self.epochs: list[int] = []
        self.influence: list[Tensor] = []
        self.loss: list[Tensor] = []

    def epoch(self, moment: Moment) -> None:
        """Look at the memory as it is now."""
        if moment.epoch % self.every:
            return
        tracker = self.ask(moment)
        tracker.snapshot()
        self.epochs.append(moment.epoch)
        self.influence.append(torch.tensor(tracker.table["self_influence"].to_numpy()))
        self.loss.append(torch.tensor(tracker.table["loss"].to_numpy()))


def main() -> None:
    torch.set_num_threads(1)
    x, y = digits()
    x, y = x[: size(1000, 200)], y[: size(1000, 200)].clone()
    wrong = torch.zeros(len(y), dtype=torch.bool)
    wrong[: len(y) // 10] = True
    y[wrong] = (y[wrong] + 3) % 10
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 10))
    watch = EveryEpoch(lambda moment: MemoryTracker(model, moment.optimizer, (x, y)), every=size(2, 1))
    options = {"epochs": size(150, 2), "batch_size": 50, "prior": 0.0, "schedule": "constant", "lr": 2e-3}
    po.fit(model, (x, y), method="adamw", callbacks=[watch], **options)

    figure, (axes,) = panels(1, 2, width=5.6, height=3.9)
    names = ("self-influence eᵀVe", "loss (nats)")
    for axis, scores, name in zip(axes, (watch.influence, watch.loss), names, strict=True):
        table = torch.stack(scores)  # (epochs, examples)
        for mine, label, colour in ((~wrong, "right labels", BLUE), (wrong, "wrong labels", VERMILION)):
            low, middle, high = table[:, mine].quantile(torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64), dim=1)
            axis.fill_between(watch.epochs, low, high, color=colour, alpha=0.2, linewidth=0)
            axis.plot(watch.epochs, middle, color=colour, label=label)
        axis.set_yscale("log")
        axis.set(xlabel="epoch", ylabel=name)
        axis.grid(True, color="#E3E3E3")
    axes[0].legend(frameon=False)
    figure.suptitle("Wrong labels stand out during training, and fade as they are memorised (median, and 10 to 90 %)")
    save(figure, "sensitivity")


if __name__ == "__main__":
    main()
