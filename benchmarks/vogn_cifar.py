"""CIFAR-10 with augmentation: VOGN against Adam and MC dropout on an AlexNet for small images.

Crop and flip, warm-up and cosine. VOGN multiplies the number of examples by ten, as its paper does under augmentation,
and predicts with 10 samples; MC dropout with 10 masks. Published for a similar network (accuracy / NLL / ECE, from
memory of the paper): Adam 73.6 / 1.48 / 0.26, VOGN 75.5 / 0.70 / 0.016.
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
from training import (
    Pass,
    add_options,
    averaged,
    changed,
    cifar,
    described,
    epochs,
    probabilities,
    publish_scores,
    scores,
    warm_cosine,
)

import posterity as po
from posterity.optim import VOGN

SAMPLES, BINS = 10, 15
VARIATIONAL = {"lr": 5e-3, "ess": 5e5, "hess_init": 0.01, "weight_decay": 1e-4, "damping": 1e-3, "beta2": 0.999}
ROWS = {
    "Adam": {"lr": 1e-3},
    "MC dropout": {"lr": 1e-3, "rate": 0.2},
    "VOGN": VARIATIONAL,
    "VOGN-colder": VARIATIONAL | {"ess": 5e6},
}


def alexnet(rate: float = 0.0) -> nn.Sequential:
    """Five convolutions for 32 x 32 images; dropout before every layer but the first."""

    def drop() -> list[nn.Module]:
        return [nn.Dropout(rate)] if rate else []

    return nn.Sequential(
        nn.Conv2d(3, 64, 5, 2, 2), nn.ReLU(), nn.MaxPool2d(2), *drop(),
        nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), *drop(),
        nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(), *drop(),
        nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(), *drop(),
        nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), *drop(),
        nn.Linear(1024, 10),
    )  # fmt: skip


def train(
    name: str, settings: dict[str, float], data: tuple[Tensor, Tensor], options: argparse.Namespace, seed: int
) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    (x, y), batch, steps = data, options.batch, len(data[0]) // options.batch
    model = alexnet(settings.get("rate", 0.0)).to(x.device)
    if name == "VOGN":
        given = {key: value for key, value in settings.items() if key != "beta2"}
        optimizer = VOGN(model.parameters(), betas=(0.9, settings["beta2"]), seed=seed, **given)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=settings["lr"])
    schedule = warm_cosine(optimizer, steps, options.epochs * steps)
    step = None if name == "VOGN" else Pass(model, F.cross_entropy, x[:batch], y[:batch])
    for inputs, targets in epochs(x, y, batch, options.epochs, augment=True):
        optimizer.zero_grad()
        if step is None:
            with optimizer.sampled_params(train=True):
                optimizer.backward(model, inputs, targets, "categorical")
        else:
            step(inputs, targets)
        optimizer.step()
        schedule.step()
    return model, optimizer


def predictions(name: str, model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, n: int) -> dict[str, Tensor]:
    """Probabilities by the ways in which a method predicts."""
    found = {"Adam": "", "MC dropout": "standard", "VOGN": "mean"}
    found = {found[name]: probabilities(model, x)}
    if isinstance(optimizer, VOGN):
        found[f"{SAMPLES} samples"] = averaged(model, optimizer, x, SAMPLES)
    elif name == "MC dropout":
        posterior = po.dropout(model, likelihood="categorical", n=n)
        found[f"{SAMPLES} masks"] = po.predict(model, posterior, x, samples=SAMPLES, batch_size=2000).probs
    return found


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    data, (x_test, y_test) = cifar(datasets.folder(options.data), options.tune, options.limit)
    for row in options.rows:
        name, settings = row.partition("-")[0], changed(ROWS[row], options.change)
        for seed in options.seeds:
            start = time.perf_counter()
            model, optimizer = train(name, settings, data, options, seed)
            minutes = (time.perf_counter() - start) / 60
            for way, probs in predictions(name, model, optimizer, x_test, len(data[0])).items():
                yield {
                    "name": f"{name}, {way}" if way else name, "settings": described(settings), "seed": seed,
                    "epochs": options.epochs, "batch": options.batch, "tune": options.tune, "minutes": minutes,
                    "scores": scores(probs, y_test, BINS),
                }  # fmt: skip


def main() -> None:
    arguments = report.parser(__doc__)
    add_options(arguments, ROWS, epochs=40, batch=128)
    options = arguments.parse_args()
    lines = report.gather(options, runs)
    if options.raw:
        return
    for line in lines:
        line["name"] = f"{line['name']} ({line['settings'].split(', ')[1]})" if "VOGN" in line["name"] else line["name"]
    columns = ["accuracy", "NLL", "ECE", "Brier"]
    facts = {"batch": lines[0]["batch"], "ECE_bins": BINS}
    publish_scores("vogn_cifar", "CIFAR-10, AlexNet: VOGN, Adam, MC dropout", lines, columns, options.out, **facts)


if __name__ == "__main__":
    main()
