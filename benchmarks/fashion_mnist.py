"""Fashion-MNIST, LeNet: IVON against AdamW, SGD and (where it is installed) ivon-opt, at equal epochs.

Every method trains the same network for the same epochs with batch 100 and a cosine schedule. Variational methods are
shown at the mean and with 64 samples; accuracy, NLL and ECE (15 bins) on the 10 000 test images.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import datasets
import report
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import networks
import posterity as po
from posterity.optim import IVON

BATCH = 100
SAMPLES = 64


def make_optimizer(method: str, model: nn.Module, n: int, steps: int, seed: int) -> torch.optim.Optimizer:
    if method == "AdamW":
        return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
    if method == "SGD":
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=2e-4)
    settings = {"lr": 0.1, "ess": n, "hess_init": 0.1, "weight_decay": 2e-4}
    if method == "IVON":
        return IVON(model.parameters(), **settings, seed=seed)
    if method == "IVON auto":
        return IVON(model.parameters(), **settings, betas=(0.9, "auto"), total_steps=steps, seed=seed)
    import ivon

    return ivon.IVON(model.parameters(), **settings)


def train(
    method: str, seed: int, train_set: tuple[Tensor, Tensor], epochs: int
) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    x, y = train_set
    model = networks.lenet().to(x.device)
    steps = epochs * (len(x) // BATCH)
    optimizer = make_optimizer(method, model, len(x), steps, seed)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    variational = hasattr(optimizer, "sampled_params")
    for _ in range(epochs):
        for index in torch.randperm(len(x), device=x.device).split(BATCH):
            optimizer.zero_grad()
            if variational:
                with optimizer.sampled_params(train=True):
                    F.cross_entropy(model(x[index]), y[index]).backward()
            else:
                F.cross_entropy(model(x[index]), y[index]).backward()
            optimizer.step()
            schedule.step()
    return model, optimizer


@torch.no_grad()
def probabilities(model: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([model(part).softmax(-1) for part in x.split(2000)])


@torch.no_grad()
def evaluate(method: str, model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, n: int) -> dict[str, Tensor]:
    """Test probabilities at the mean and, for variational methods, averaged over samples."""
    rows = {f"{method} (mean)" if hasattr(optimizer, "sampled_params") else method: probabilities(model, x)}
    if isinstance(optimizer, IVON):
        posterior = optimizer.posterior(model, likelihood="categorical", n=n)
        rows[f"{method} ({SAMPLES} samples)"] = po.predict(model, posterior, x, samples=SAMPLES).probs
    elif hasattr(optimizer, "sampled_params"):
        total = torch.zeros_like(next(iter(rows.values())))
        for _ in range(SAMPLES):
            with optimizer.sampled_params():
                total += probabilities(model, x)
        rows[f"{method} ({SAMPLES} samples)"] = total / SAMPLES
    return rows


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--epochs", type=int, default=30)
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments.add_argument("--methods", nargs="+", default=["AdamW", "SGD", "IVON", "IVON auto"])
    arguments.add_argument("--limit", type=int, help="use only this many images of each set (to try the script out)")
    report.study(arguments.parse_args(), runs, publish)


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    root = datasets.folder(options.data)
    train_set = tuple(t[: options.limit].to(device) for t in datasets.digits_like(root, "FashionMNIST", "train"))
    x_test, y_test = (t[: options.limit].to(device) for t in datasets.digits_like(root, "FashionMNIST", "t10k"))
    for method in options.methods:
        for seed in options.seeds:
            start = time.perf_counter()
            model, optimizer = train(method, seed, train_set, options.epochs)
            seconds = time.perf_counter() - start
            for name, probs in evaluate(method, model, optimizer, x_test, len(train_set[0])).items():
                scores = [
                    100 * po.metrics.accuracy(probs, y_test),
                    po.metrics.nll(probs, y_test),
                    po.metrics.ece(probs, y_test, bins=15),
                ]
                yield {"name": name, "seed": seed, "epochs": options.epochs, "scores": scores, "seconds": seconds}


def publish(lines: list[report.Line], options: argparse.Namespace) -> None:
    names = list(dict.fromkeys(line["name"] for line in lines))
    rows = []
    for name in names:
        mine = [line for line in lines if line["name"] == name]
        accuracy, nll, ece = zip(*[line["scores"] for line in mine], strict=True)
        seconds = sum(line["seconds"] for line in mine) / len(mine)
        rows.append([name, report.spread(accuracy, 2), report.spread(nll), report.spread(ece), f"{seconds:.0f}"])
    seeds = sorted({line["seed"] for line in lines})
    text = report.header("Fashion-MNIST, LeNet 20-50-500", lines, epochs=lines[0]["epochs"], batch=BATCH, seeds=seeds)
    columns = ["method", "accuracy %", "NLL", "ECE (15 bins)", "training s"]
    report.publish("fashion_mnist", text + "\n" + report.table(columns, rows), options.out)


if __name__ == "__main__":
    main()
