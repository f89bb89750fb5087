"""CIFAR-10 with augmentation: VOGN against Adam and MC dropout on an AlexNet for small images.

Crop and flip, warm-up and cosine. VOGN predicts with 10 samples, MC dropout with 10 masks. The settings of each method
are those with the highest accuracy, in a shorter training, on the last 5000 training images (`--tune`); the table has
other seeds, all training images and the test images. An effective sample size above the number of examples is a cold
posterior; augmentation alone multiplies it by ten in the paper. Published for a similar network (accuracy / NLL / ECE,
from memory of the paper): Adam 73.6 / 1.48 / 0.26, VOGN 75.5 / 0.70 / 0.016.
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
    cells,
    changed,
    cifar,
    described,
    epochs,
    probabilities,
    score_table,
    scores,
    warm_cosine,
)

import posterity as po
from posterity.optim import VOGN

SAMPLES, BINS, NORMAL_LR = 10, 15, 1e-3
VARIATIONAL = {"ess": 5e7, "hess_init": 0.01, "weight_decay": 1e-4, "damping": 1e-3, "beta2": 0.999, "lr": 2e-3}
ROWS = {
    "Adam": {"lr": NORMAL_LR},
    "Adam-slower": {"lr": NORMAL_LR / 3},
    "MC dropout": {"lr": NORMAL_LR, "rate": 0.2},
    "MC dropout-less": {"lr": NORMAL_LR, "rate": 0.1},
    "VOGN-first-edition": VARIATIONAL | {"ess": 5e5, "lr": 5e-3},
    "VOGN-1": VARIATIONAL | {"ess": 5e6},
    "VOGN-2": VARIATIONAL | {"ess": 1.5e7},
    "VOGN-3": VARIATIONAL | {"ess": 1.5e7, "lr": 5e-3},
    "VOGN-4": VARIATIONAL,
    "VOGN-5": VARIATIONAL | {"lr": 1e-3},
    "VOGN-6": VARIATIONAL | {"lr": 5e-3},
    "VOGN-7": VARIATIONAL | {"ess": 1.5e8},
    "VOGN-8": VARIATIONAL | {"lr": 3e-4, "damping": 1e-4},
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
    root = datasets.folder(options.data)
    data, (x_test, y_test) = cifar(root, options.tune, options.limit)
    for row in chosen(report.read(options.chosen), options.rows) if options.chosen else options.rows:
        name, settings = row.partition("-")[0], changed(ROWS[row], options.change)
        for seed in options.seeds:
            start = time.perf_counter()
            model, optimizer = train(name, settings, data, options, seed)
            minutes = (time.perf_counter() - start) / 60
            for way, probs in predictions(name, model, optimizer, x_test, len(data[0])).items():
                yield {
                    "name": f"{name}, {way}" if way else name, "row": row, "settings": described(settings),
                    "seed": seed, "epochs": options.epochs, "batch": options.batch, "tune": options.tune,
                    "minutes": minutes, "scores": scores(probs, y_test, BINS),
                    "pictures": datasets.cifar_pictures(root),
                }  # fmt: skip


def chosen(tries: list[report.Line], rows: list[str]) -> list[str]:
    """Of each method among the rows, the row with the highest held-out accuracy."""
    found = []
    for method in dict.fromkeys(row.partition("-")[0] for row in rows):
        mine = [line for line in tries if line["row"] in rows and line["row"].partition("-")[0] == method]
        found.append(max(mine, key=lambda line: line["scores"]["accuracy"])["row"])
    return found


def publish(lines: list[report.Line], options: argparse.Namespace) -> None:
    """The table of the test images, and below it that of the search."""
    columns = ["accuracy", "NLL", "ECE", "Brier"]
    tries, final = ([line for line in lines if line["tune"] is tune] for tune in (True, False))
    seeds = sorted({line["seed"] for line in final})
    facts = {"batch": lines[0]["batch"], "ECE_bins": BINS, "seeds": seeds}
    text = report.header("CIFAR-10, AlexNet: VOGN, Adam, MC dropout", lines, **facts)
    text += "\n" + " ".join((__doc__ or "").split("\n\n", 1)[1].split()) + "\n"
    text += f"\n### Test images, {final[0]['epochs']} epochs\n\n{score_table(final, columns)}" if final else ""
    if tries:
        rows = [[line["name"], line["settings"], *cells([line], columns)] for line in tries]
        text += f"\n### Held-out training images, one seed, {tries[0]['epochs']} epochs\n\n"
        text += report.table(["method", "settings", *columns, "minutes"], rows)
    report.publish("vogn_cifar", text, options.out)


def main() -> None:
    arguments = report.parser(__doc__)
    add_options(arguments, ROWS, epochs=40, batch=256)
    arguments.add_argument("--chosen", help="raw results of --tune: train the best row of each method among the rows")
    report.study(arguments.parse_args(), runs, publish)


if __name__ == "__main__":
    main()
