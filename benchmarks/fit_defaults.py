"""Fashion-MNIST, LeNet: which settings of IVON `po.fit` should have by default, on training images kept apart.

50 000 training images are learnt from and the other 10 000 judge; no test image is looked at. `--raw` splits the study
over processes, a row each.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from typing import Any

import datasets
import report
import torch

import networks
import posterity as po

LEARNT, SAMPLES = 50_000, 64
ROWS: dict[str, dict[str, Any]] = {
    "lr 0.2, hess_init 1": {"hess_init": 1.0},
    "lr 0.2, hess_init 0.1": {"hess_init": 0.1},
    "lr 0.1, hess_init 0.1": {"lr": 0.1, "hess_init": 0.1},
    "as published": {"lr": 0.1, "hess_init": 0.1, "beta2": 0.99999, "clip": math.inf, "prior": 2e-4 * LEARNT},
}


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images, labels = (
        t.to(device) for t in datasets.digits_like(datasets.folder(options.data), "FashionMNIST", "train")
    )
    data = images[:LEARNT][: options.limit], labels[:LEARNT][: options.limit]
    x, y = images[LEARNT:][: options.limit], labels[LEARNT:][: options.limit]
    for name in options.rows:
        for seed in options.seeds:
            torch.manual_seed(seed)
            model = networks.lenet().to(device)
            start = time.perf_counter()
            run = po.fit(model, data, method="ivon", epochs=options.epochs, batch_size=100, seed=seed, **ROWS[name])
            probs = po.predict(model, run.posterior, x, samples=SAMPLES, batch_size=2000).probs
            yield {
                "name": name, "seed": seed, "epochs": options.epochs, "accuracy": 100 * po.metrics.accuracy(probs, y),
                "nll": po.metrics.nll(probs, y), "ece": po.metrics.ece(probs, y),
                "seconds": time.perf_counter() - start,
            }  # fmt: skip


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    arguments.add_argument("--seeds", nargs="+", type=int, default=[0])
    arguments.add_argument("--epochs", type=int, default=20)
    arguments.add_argument("--limit", type=int, help="use only so many images (to try the script out)")
    options = arguments.parse_args()
    lines = report.gather(options, runs)
    if options.raw:
        return
    rows = []
    for name in dict.fromkeys(line["name"] for line in lines):
        mine = [line for line in lines if line["name"] == name]
        figures = (("accuracy", 2), ("nll", 4), ("ece", 4))
        rows.append([name, *(report.spread([line[key] for line in mine], digits) for key, digits in figures)])
    facts = {"epochs": lines[0]["epochs"], "seeds": sorted({line["seed"] for line in lines})}
    text = report.header(
        "Defaults of `po.fit` for IVON: LeNet on Fashion-MNIST, 10 000 images kept apart", lines, **facts
    )
    columns = ["settings", "accuracy %", "NLL", "ECE (15 bins)"]
    report.publish("fit_defaults", text + "\n" + report.table(columns, rows), options.out)


if __name__ == "__main__":
    main()
