"""Sensitivity of single examples during training: what the network leans on, epoch by epoch."""

from __future__ import annotations

from collections.abc import Callable

import matplotlib.pyplot as plt
import torch
from common import digits, record, save, size
from torch import Tensor, nn

import posterity as po
from posterity.learning import Callback, Moment
from posterity.memory import MemoryTracker
from posterity.metrics import auroc
from posterity.plots.style import BLUE, GREEN, INK, VERMILION


class EveryEpoch(Callback):
    """Asks a fresh tracker after each epoch, and keeps the scores of every example."""

    def __init__(self, ask: Callable[[Moment], MemoryTracker], every: int) -> None:
        self.ask, self.every = ask, every
        self.epochs: list[int] = []
        self.influence: list[Tensor] = []

    def epoch(self, moment: Moment) -> None:
        """Look at the memory as it is now."""
        if moment.epoch % self.every:
            return
        tracker = self.ask(moment)
        tracker.snapshot()
        self.epochs.append(moment.epoch)
        self.influence.append(torch.tensor(tracker.table["self_influence"].to_numpy()))


def main() -> None:
    torch.set_num_threads(1)
    x, truth = digits()
    x, truth = x[: size(1000, 200)], truth[: size(1000, 200)]
    y, wrong = truth.clone(), torch.zeros(len(truth), dtype=torch.bool)
    wrong[: len(y) // 10] = True
    y[wrong] = (y[wrong] + 3) % 10
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 10))
    watch = EveryEpoch(lambda moment: MemoryTracker(model, moment.optimizer, (x, y)), every=size(2, 1))
    options = {"epochs": size(120, 2), "batch_size": 50, "prior": 0.0, "schedule": "constant", "lr": 2e-3}
    po.fit(model, (x, y), method="adamw", callbacks=[watch], **options)
    table = torch.stack(watch.influence)  # (epochs, examples)

    total, right_ones, wrong_ones = table.sum(0), (~wrong).nonzero()[:, 0], wrong.nonzero()[:, 0]
    from_median = (total[right_ones] - total[right_ones].median()).abs()
    kinds = {
        "wrong label": (wrong_ones[total[wrong_ones].argsort(descending=True)[:4]], VERMILION),
        "right label, unusual": (right_ones[total[right_ones].argsort(descending=True)[:4]], BLUE),
        "right label, typical": (right_ones[from_median.argsort()[:4]], GREEN),
    }
    figure = plt.figure(figsize=(13, 4.8), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1.7, 1))
    axis = left.subplots()
    tiles = right.subplots(3, 4)
    for row, (kind, (chosen, colour)) in zip(tiles, kinds.items(), strict=True):
        for k, (tile, i) in enumerate(zip(row, chosen.tolist(), strict=True)):
            label = kind if k == 0 else None
            axis.plot(watch.epochs, table[:, i].clamp(min=1e-12), color=colour, linewidth=1.8, label=label)
            tile.imshow(x[i].reshape(8, 8).numpy(), cmap="gray_r")
            tile.set(xticks=[], yticks=[])
            tile.set_title(f"labelled {y[i]}" + (f", is {truth[i]}" if wrong[i] else ""), fontsize=9, color=colour)
    axis.set_yscale("log")
    axis.set(xlabel="epoch", ylabel="self-influence eᵀVe of one example")
    axis.grid(True, color="#E3E3E3")
    axis.legend(frameon=False, loc="lower left")
    found = {str(epoch): round(auroc(scores, wrong), 3) for epoch, scores in zip(watch.epochs, table, strict=True)}
    early, last = list(found)[len(found) // 6], list(found)[-1]
    figure.suptitle(
        f"What the network leans on: wrong labels stand out early (AUROC {found[early]:.2f} at epoch {early}) "
        f"and are learnt by heart ({found[last]:.2f} at {last})",
        color=INK,
    )
    record("sensitivity", auroc_of_wrong_labels_by_epoch=found, early=early, last=last)
    save(figure, "sensitivity")


if __name__ == "__main__":
    main()
