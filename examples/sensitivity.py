"""Sensitivity of single examples during training: what the network leans on, epoch by epoch."""

from __future__ import annotations

from collections.abc import Callable

import matplotlib.pyplot as plt
import torch
from common import digits, headline, record, save, size
from torch import Tensor, nn

import posterity as po
from posterity.learning import Callback, Moment
from posterity.memory import MemoryTracker
from posterity.metrics import auroc
from posterity.plots.style import BLUE, GREEN, VERMILION

EACH = 3  # examples of a kind


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


def apart(ends: list[tuple[float, str, str]], gap: float) -> list[tuple[float, str, str]]:
    """The same ends of lines, moved up until no two letters overlap."""
    placed: list[tuple[float, str, str]] = []
    for height, *rest in sorted(ends):
        placed.append((max(height, placed[-1][0] + gap) if placed else height, *rest))
    return placed


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
        "wrong label": (wrong_ones[total[wrong_ones].argsort(descending=True)[:EACH]], VERMILION),
        "right label, unusual": (right_ones[total[right_ones].argsort(descending=True)[:EACH]], BLUE),
        "right label, typical": (right_ones[from_median.argsort()[:EACH]], GREEN),
    }
    figure = plt.figure(figsize=(13, 6.0), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1.7, 1))
    axis = left.subplots()
    tiles = right.subplots(3, EACH)
    letters, ends = iter("abcdefghi"), []
    for row, (kind, (chosen, colour)) in zip(tiles, kinds.items(), strict=True):
        for k, (tile, i, letter) in enumerate(zip(row, chosen.tolist(), letters)):
            label = kind if k == 0 else None
            axis.plot(watch.epochs, table[:, i].clamp(min=1e-12), color=colour, linewidth=1.8, label=label)
            ends.append((table[-1, i].clamp(min=1e-12).log10().item(), letter, colour))
            tile.imshow(x[i].reshape(8, 8).numpy(), cmap="gray_r")
            tile.set(xticks=[], yticks=[])
            what = f"labelled {y[i]}" + (f", is {truth[i]}" if wrong[i] else "")
            tile.set_title(f"{letter}: {what}", fontsize=11, color=colour)
    axis.set_yscale("log")
    axis.set(xlabel="epoch", ylabel="self-influence eᵀVe of one example", xlim=(0, 1.05 * watch.epochs[-1]))
    for height, letter, colour in apart(ends, 0.16):
        axis.text(1.01 * watch.epochs[-1], 10**height, letter, color=colour, va="center", fontsize=12, in_layout=False)
    axis.grid(True, color="#E3E3E3")
    low, high = axis.get_ylim()
    axis.set_ylim(low / 30, high)  # room for the legend
    axis.legend(frameon=False, loc="lower left")
    found = {str(epoch): round(auroc(scores, wrong), 3) for epoch, scores in zip(watch.epochs, table, strict=True)}
    early, last = list(found)[len(found) // 6], list(found)[-1]
    axis.set_title(
        f"All {len(y)}: AUROC of wrong labels {found[early]:.2f} at epoch {early}, {found[last]:.2f} at {last}"
    )
    headline(
        figure,
        "Which examples influence the network: wrong labels all through training, unusual digits until they are "
        "learnt, typical ones hardly",
    )
    thirds = {kind: [part.median().item() for part in table[:, c].tensor_split(3)] for kind, (c, _) in kinds.items()}
    record(
        "sensitivity", auroc_of_wrong_labels_by_epoch=found, early=early, last=last,
        median_influence_in_thirds_of_training=thirds,
    )  # fmt: skip
    save(figure, "sensitivity")


if __name__ == "__main__":
    main()
