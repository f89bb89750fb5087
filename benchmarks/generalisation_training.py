"""Predicting generalisation during training, by the public recipe of the memory-perturbation paper.

IVON with hess_init 0.01, lr 0.2, batches of 50 and a prior of precision 10, on clean labels. After each epoch the
leave-one-out NLL is estimated from the training data and the optimizer's own posterior, at the cost of one more pass.
The training NLL and the test NLL, which played no part, are shown beside it. For the ResNet-20 (filter response
normalisation, no augmentation) training and leave-one-out NLL are those of 5000 random training images. With --state a
run that was stopped goes on after its last epoch, with other batches than it would have had.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import matplotlib as mpl
import numpy as np
import report
import torch
import torch.nn.functional as F
from generalisation import Data, cifar10, fashion, mean_nll, split_digits
from matplotlib.ticker import MaxNLocator
from scipy.stats import spearmanr
from torch import nn
from training import Pass, epochs

import networks
from posterity.memory import MemoryTracker
from posterity.optim import IVON
from posterity.plots.style import BLUE, GREEN, MUTED, panels

mpl.use("Agg")


@dataclass(frozen=True)
class Recipe:
    """Data, a network, and how long to train."""

    data: Callable[[argparse.Namespace], tuple[Data, Data]]
    network: Callable[[], nn.Module]
    epochs: int
    asked: int | None = None  # random training examples that are looked at, where all would take too long


RECIPES = {
    "digits, MLP 64-100-10": Recipe(split_digits, lambda: networks.mlp((64, 100, 10)), 40),
    "Fashion-MNIST, LeNet-5": Recipe(fashion, networks.lenet5, 40),
    "CIFAR-10, ResNet-20": Recipe(cifar10, lambda: networks.ResNet20(frn=True), 40, 5000),
}
DELTA, LR, HESSIAN, BATCH = 10.0, 0.2, 0.01, 50


def looks(name: str, options: argparse.Namespace, seed: int) -> Iterator[report.Line]:
    """Train, and look after each epoch."""
    recipe = RECIPES[name]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train, test = ((x[: options.limit].to(device), y[: options.limit].to(device)) for x, y in recipe.data(options))
    n, length = len(train[1]), options.epochs or recipe.epochs
    torch.manual_seed(seed)
    model = recipe.network().to(device)
    optimizer = IVON(model.parameters(), lr=LR, ess=n, hess_init=HESSIAN, weight_decay=DELTA / n, seed=seed)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, length)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0)).to(device)[: recipe.asked]
    asked = train if recipe.asked is None else (train[0][order], train[1][order])
    tracker = MemoryTracker(model, optimizer, asked, batch_size=1024, n=n)
    step = Pass(model, F.cross_entropy, train[0][:BATCH], train[1][:BATCH], autocast=False)
    cifar = {"pictures": datasets.cifar_pictures(datasets.folder(options.data))} if "CIFAR" in name else {}
    kept = None if options.state is None else Path(options.state) / f"{name}, {seed}.pt"
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    for epoch in range(resumed(kept, parts), length):
        model.train()
        for inputs, targets in epochs(*train, BATCH, 1, augment=False):
            optimizer.zero_grad()
            with optimizer.sampled_params(train=True):
                step(inputs, targets)
            optimizer.step()
        schedule.step()
        model.eval()
        tracker.snapshot()
        found = {
            "training": mean_nll(model, asked),
            "leave-one-out": float(tracker.history["loo_nll"].iloc[-1]),
            "test": mean_nll(model, test),
        }
        yield {"setting": name, "seed": seed, "epoch": epoch + 1, "nll": found, **cifar}
        if kept is not None:
            keep(kept, parts, epoch + 1)


def resumed(kept: Path | None, parts: dict[str, Any]) -> int:
    """Epochs that are done already, with model, optimizer and schedule as they were then."""
    if kept is None or not kept.exists():
        return 0
    found = torch.load(kept, weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(found[name])
    return found["epochs"]


def keep(kept: Path, parts: dict[str, Any], epochs: int) -> None:
    """Write what `resumed` reads, whole or not at all."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    new = kept.with_suffix(".new")
    torch.save({name: part.state_dict() for name, part in parts.items()} | {"epochs": epochs}, new)
    new.replace(kept)


def curves(lines: list[report.Line]) -> dict[tuple[str, int], dict[str, np.ndarray]]:
    """By setting and seed, the three curves over epochs."""
    found: dict[tuple[str, int], dict[str, np.ndarray]] = {}
    for key in dict.fromkeys((line["setting"], line["seed"]) for line in lines):
        mine = sorted((line for line in lines if (line["setting"], line["seed"]) == key), key=lambda x: x["epoch"])
        found[key] = {curve: np.array([line["nll"][curve] for line in mine]) for curve in mine[0]["nll"]}
    return found


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    for name in options.settings:
        for seed in options.seeds:
            yield from looks(name, options, seed)


def draw(lines: list[report.Line], folder: Path) -> None:
    """The curves over epochs: a picture for each setting, with a panel for each seed."""
    report.drawing()  # its letters
    found = curves(lines)
    for setting in dict.fromkeys(setting for setting, _ in found):
        mine = {seed: shown for (name, seed), shown in found.items() if name == setting}
        figure, (axes,) = panels(1, len(mine), width=4.2 if len(mine) > 1 else 8.4, height=4.2)
        for axis, (seed, shown) in zip(axes, mine.items(), strict=True):
            for (label, values), colour in zip(shown.items(), (MUTED, BLUE, GREEN), strict=True):
                axis.plot(range(1, len(values) + 1), values, color=colour, linewidth=2.2, label=label)
            axis.set(title=f"seed {seed}", xlabel="epoch", ylabel="mean NLL (nats)")
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            axis.grid(True, color="#E3E3E3")
        axes[0].legend(frameon=False)
        figure.suptitle(f"{setting}: {message(list(mine.values()))}")
        folder.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"\W", "_", setting.rpartition(", ")[2].lower())
        figure.savefig(folder / f"generalisation_{name}.png", dpi=110, bbox_inches="tight")


def message(seeds: list[dict[str, np.ndarray]]) -> str:
    """What the curves of one setting show, by their numbers."""
    rank = min(spearmanr(shown["leave-one-out"], shown["test"])[0] for shown in seeds)
    late = [(shown["leave-one-out"] - shown["test"])[len(shown["test"]) // 2 :] for shown in seeds]
    side = "above" if all((gap > 0).all() for gap in late) else "below" if all((gap < 0).all() for gap in late) else ""
    how = f" from {side}" if side else ""
    what = f"follows the test NLL{how}" if rank > 0.9 else "does not follow the test NLL"
    off = sorted((f"{100 * abs(shown['leave-one-out'][-1] / shown['test'][-1] - 1):.0f}" for shown in seeds), key=int)
    level, least = (off[0], "") if len(seeds) == 1 else (f"{off[0]} to {off[-1]}", " or more")
    return (
        f"leave-one-out, from the training data alone,\n{what} (rank correlation {rank:.2f}{least}) "
        f"and ends {level} % {side or 'off'}"
    )


def publish(lines: list[report.Line], options: argparse.Namespace) -> None:
    facts = {"lr": LR, "hess_init": HESSIAN, "batch": BATCH, "prior precision": DELTA}
    text = report.header("Leave-one-out NLL during training, the authors' recipe", lines, **facts)
    text += f"\n{__doc__.partition(chr(10))[2].strip()}\n\n"
    run = {line["setting"] for line in lines}
    rows = [row for row in report.earlier_rows("generalisation_training", options.out) if row[0] not in run]
    for (setting, seed), found in curves(lines).items():
        train, loo, test = found.values()
        ends = [f"{values[-1]:.3f}" for values in (train, loo, test)]
        closer = np.abs(loo - test).mean() / np.abs(train - test).mean()
        stop, best = int(loo.argmin()), int(test.argmin())
        cost = f"{stop + 1} ({best + 1}), {test[stop] / test[best] - 1:+.1%}"
        rows.append([setting, seed, len(test), *ends, f"{closer:.2f}", cost, f"{spearmanr(loo, test)[0]:.2f}"])
    columns = ["", "seed", "epochs", "training NLL", "leave-one-out", "test NLL", "distance to test, of training's"]
    text += report.table([*columns, "stop (truly best), cost", "Spearman"], rows)
    text += "\nRows of settings that were not run again are those of the last run of this script.\n"
    report.publish("generalisation_training", text, options.out)
    if options.pictures:
        draw(lines, Path(options.pictures))


def main() -> None:
    parser = report.parser(__doc__)
    parser.add_argument("--settings", nargs="+", default=["digits, MLP 64-100-10"], choices=list(RECIPES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, help="instead of the recipe's")
    parser.add_argument("--limit", type=int, help="use only so many examples (to try the script out)")
    parser.add_argument("--pictures", help="folder for the picture")
    parser.add_argument("--state", help="folder from which a stopped run goes on")
    report.study(parser.parse_args(), runs, publish)


if __name__ == "__main__":
    main()
