"""Does the leave-one-out NLL of the training data predict the test NLL, epoch by epoch, without a validation set?

A tenth of the labels is flipped, in the training and in the test data alike, so that training overfits: test NLL falls
and rises again. At chosen epochs the mean leave-one-out NLL is estimated with each covariance. Correlation over epochs
alone proves nothing (the training loss has it, too, where nothing overfits): what counts is the epoch that the
estimate would stop at, what stopping there costs, and the level of the estimate. Curves are flat near their smallest
value, so a row says what a validation set can do: one half of the test data judged, like the rest, by the other half.

Leave-one-out formulas are about optima, and before its end training is not at one: t steps of gradient descent have
the effect of a prior around the start, of precision N/(lr · t) in units of the summed loss (lr/(1 − momentum) with
momentum). Estimates "with early stopping" have it added to the precision of the prior, for SGD. That row was added
after a look at seeds 0 to 2; the seeds of the table played no part in any choice.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import datasets
import numpy as np
import report
import torch
import torch.nn.functional as F
from label_noise import digits, flipped
from scipy.stats import spearmanr
from torch import Tensor, nn

import networks
import posterity as po
from posterity.batches import batches
from posterity.memory import MemoryTracker, leave_one_out
from posterity.optim import IVON

Data = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Setting:
    """Data, a network, a prior, and when to look."""

    data: Callable[[argparse.Namespace], tuple[Data, Data]]
    network: Callable[[], nn.Module]
    delta: float
    epochs: tuple[int, ...]
    structures: tuple[str, ...]
    batch_size: int = 50
    lr: float = 1e-2  # of Adam
    sgd_lr: float = 0.1
    asked: int | None = None  # random examples that curvature and average are taken over, where all would take too long


def split_digits(options: argparse.Namespace) -> tuple[Data, Data]:
    x, y = digits(options)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))  # the file is not in random order
    return (x[order[:1000]], y[order[:1000]]), (x[order[1000:]], y[order[1000:]])


def fashion(options: argparse.Namespace) -> tuple[Data, Data]:
    root = datasets.folder(options.data)
    return datasets.digits_like(root, "FashionMNIST", "train"), datasets.digits_like(root, "FashionMNIST", "t10k")


def cifar10(options: argparse.Namespace) -> tuple[Data, Data]:
    root = datasets.folder(options.data)
    return datasets.cifar10(root, "train"), datasets.cifar10(root, "test")


METHODS = ("sgd", "adam", "ivon")
VALIDATION = "a validation set, half as large as the test data"
MOMENTUM = 0.9
OFTEN = (1, 2, 5, 10, 15, 20, 25, 30, 40, 60, 100)
SELDOM = (1, 2, 4, 7, 10, 15, 20, 30)
RARELY = (1, 3, 6, 10, 15, 25)
SETTINGS = {
    "digits, MLP 64-20-10": Setting(
        split_digits, lambda: networks.mlp((64, 20, 10)), 1.0, OFTEN, ("full", "kron", "diag")
    ),
    "digits, MLP 64-100-10": Setting(split_digits, lambda: networks.mlp((64, 100, 10)), 1.0, OFTEN, ("kron", "diag")),
    "Fashion-MNIST, LeNet": Setting(
        fashion, networks.lenet, 10.0, SELDOM, ("kron", "diag", "last_layer"), 256, 1e-3, 0.02
    ),
    "CIFAR-10, ResNet-20": Setting(
        cifar10, networks.ResNet20, 10.0, RARELY, ("kron", "diag", "last_layer"), 256, 1e-3, asked=10_000
    ),
}


def mean_nll(model: nn.Module, data: Data) -> float:
    with torch.no_grad():
        losses = [F.cross_entropy(model(x), y, reduction="sum") for x, y in zip(*(part.split(1024) for part in data))]
    return (torch.stack(losses).sum() / len(data[1])).item()


def curves(name: str, method: str, options: argparse.Namespace, seed: int) -> report.Line:
    """Train and look: test NLL, training NLL and every estimate, at the chosen epochs."""
    setting = SETTINGS[name]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train, test = setting.data(options)
    train = (train[0].to(device), flipped(train[1], seed)[0].to(device))
    test = (test[0].to(device), flipped(test[1], seed + 1)[0].to(device))
    train, test = ((x[: options.limit], y[: options.limit]) for x, y in (train, test))
    n = len(train[1])
    torch.manual_seed(seed)
    model = setting.network().to(device)
    decay = setting.delta / n
    optimizer: torch.optim.Optimizer
    if method == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=setting.sgd_lr, momentum=MOMENTUM, weight_decay=decay)
    elif method == "adam":
        optimizer = torch.optim.Adam(model.parameters(), lr=setting.lr, weight_decay=decay)
    else:
        optimizer = IVON(model.parameters(), lr=0.2, ess=n, hess_init=0.1, weight_decay=decay)
    tracker = MemoryTracker(model, optimizer, train, batch_size=1024)
    found: dict[str, list[float]] = {}
    stream = batches(train, batch_size=setting.batch_size, shuffle=True, seed=seed)
    for epoch in range(max(setting.epochs)):
        model.train()
        for batch in stream.epoch(epoch):
            optimizer.zero_grad()
            if isinstance(optimizer, IVON):
                with optimizer.sampled_params(train=True):
                    F.cross_entropy(model(batch.inputs), batch.targets).backward()
            else:
                F.cross_entropy(model(batch.inputs), batch.targets).backward()
            optimizer.step()
        if epoch + 1 in setting.epochs:
            stopping = n * (1 - MOMENTUM) / (setting.sgd_lr * (epoch + 1) * len(stream)) if method == "sgd" else None
            look(found, model.eval(), tracker, setting, stopping, train, test)
    return {"setting": name, "method": method, "seed": seed, "epochs": list(setting.epochs), "curves": found}


def look(
    found: dict[str, list[float]],
    model: nn.Module,
    tracker: MemoryTracker,
    setting: Setting,
    stopping: float | None,
    train: Data,
    test: Data,
) -> None:
    """Add one point to every curve."""
    tracker.snapshot()
    half = len(test[1]) // 2
    point = {"test": mean_nll(model, (test[0][half:], test[1][half:])), "training NLL": mean_nll(model, train)}
    point[VALIDATION] = mean_nll(model, (test[0][:half], test[1][:half]))
    point["optimizer's state, first order"] = float(tracker.history["loo_nll"].iloc[-1])
    order = torch.randperm(len(train[1]), generator=torch.Generator().manual_seed(0)).to(train[1].device)
    asked = train if setting.asked is None else (train[0][order[: setting.asked]], train[1][order[: setting.asked]])
    priors = {"": setting.delta} | ({} if stopping is None else {", with early stopping": setting.delta + stopping})
    for structure in setting.structures:
        for label, delta in priors.items():
            posterior = po.laplace(
                model, asked, n=len(train[1]), structure=structure, prior_precision=delta, batch_size=1024
            )
            for deflate in (True, False) if structure in ("full", "last_layer") else (False,):
                loo = leave_one_out(model, posterior, asked, deflate=deflate, batch_size=1024)
                point[f"{structure}, {'deflated' if deflate else 'first order'}{label}"] = loo.nll.mean().item()
    for key, value in point.items():
        found.setdefault(key, []).append(value)


def main() -> None:
    parser = report.parser(__doc__)
    parser.add_argument("--settings", nargs="+", default=[name for name in SETTINGS if name.startswith("digits")])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[10, 11, 12, 13, 14])
    parser.add_argument("--limit", type=int, help="use only so many examples (to try the script out)")
    report.study(parser.parse_args(), runs, publish)


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    for name in options.settings:
        for method in options.methods:
            for seed in options.seeds:
                yield curves(name, method, options, seed)


def judged(line: report.Line, estimate: str) -> dict[str, float]:
    """Where an estimate would stop, what that costs, and how far its level is off."""
    true, guess, epochs = (np.array(a) for a in (line["curves"]["test"], line["curves"][estimate], line["epochs"]))
    best, chosen = int(true.argmin()), int(np.nanargmin(guess))
    return {
        "true epoch": epochs[best],
        "epoch": epochs[chosen],
        "cost": true[chosen] / true[best] - 1,
        "level": guess[best] / true[best] - 1,
        "last": guess[-1] / true[-1] - 1,
        "spearman": spearmanr(guess, true).statistic,
    }


def publish(lines: list[report.Line], options: argparse.Namespace) -> None:
    text = report.header("Leave-one-out NLL as a predictor of test NLL, 10 % of the labels wrong", lines)
    text += "\nStop: the epoch with the smallest estimate. Cost: how much larger the test NLL is there than at its own "
    text += (
        "smallest. Level: estimate against test NLL, at the truly best and at the last epoch. Medians over the seeds.\n"
    )
    for name, method in dict.fromkeys((line["setting"], line["method"]) for line in lines):
        mine = [line for line in lines if (line["setting"], line["method"]) == (name, method)]
        rows = []
        for estimate in mine[0]["curves"]:
            if estimate != "test":
                found = [judged(line, estimate) for line in mine]
                mid = {key: float(np.median([f[key] for f in found])) for key in found[0]}
                stops = " / ".join(f"{f['epoch']:.0f} ({f['true epoch']:.0f})" for f in found)
                shares = [f"{mid['cost']:+.1%}", f"{mid['level']:+.0%}", f"{mid['last']:+.0%}"]
                rows.append([estimate, stops, *shares, f"{mid['spearman']:.2f}"])
        part = SETTINGS[name].asked
        note = f"; curvature and average over {part:,} random examples" if part else ""
        text += f"\n### {name}, {method} ({len(mine)} seeds{note})\n\n"
        columns = ["estimate", "stop (truly best), by seed", "cost", "level at best", "level at last", "Spearman"]
        text += report.table(columns, rows)
    report.publish("generalisation", text, options.out)


if __name__ == "__main__":
    main()
