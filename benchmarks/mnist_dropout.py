"""MNIST with LeNet, all the data and a quarter of it: where dropout stands, what averaging over masks adds.

Dropout nowhere, before the last layer, or after every convolution as well; the last with weight averaging (the usual
test pass) and with MC dropout (the average of passes with masks). IVON and Laplace, on the network without
dropout, as further rows.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator

import datasets
import report
import torch
from torch import Tensor

import networks
import posterity as po

ROWS = {
    "no dropout": (0.0, 0.0),
    "dropout at the end": (0.0, 0.5),
    "dropout everywhere": (0.5, 0.5),
    "IVON": (0.0, 0.0),
}
IVON = {"lr": 0.1, "hess_init": 0.1, "beta2": 0.99999, "clip": math.inf}  # as for Fashion-MNIST, as published
DECAY = 2e-4
SAMPLES = 100
BATCH = 100


def predictions(
    row: str, data: tuple[Tensor, Tensor], x_test: Tensor, epochs: int, seed: int
) -> Iterator[tuple[str, Tensor]]:
    """Train one network and predict in every way its row allows."""
    torch.manual_seed(seed)
    model = networks.lenet(*ROWS[row]).to(x_test.device)
    method = {"IVON": "ivon", "no dropout": "adamw"}.get(row, "dropout")
    options = IVON | {"prior": DECAY * len(data[0])} if row == "IVON" else {}
    run = po.fit(
        model, data, method=method, likelihood="categorical", epochs=epochs, batch_size=BATCH, seed=seed, **options
    )
    if row == "dropout everywhere":
        yield f"{row}, weight averaging", po.predict(model, run.posterior, x_test, samples=0, batch_size=2000).probs
        yield f"{row}, MC dropout", po.predict(model, run.posterior, x_test, samples=SAMPLES, batch_size=2000).probs
        return
    samples = SAMPLES if row == "IVON" else 0
    yield row, po.predict(model, run.posterior, x_test, samples=samples, batch_size=2000).probs
    if row == "no dropout":
        posterior = po.laplace(model, data, likelihood="categorical", structure="last_layer", batch_size=1000)
        yield "Laplace, last layer", po.predict(model, posterior, x_test, method="probit", batch_size=2000).probs


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    root = datasets.folder(options.data)
    x, y = (t[: options.limit].to(device) for t in datasets.digits_like(root, "MNIST", "train"))
    x_test, y_test = (t[: options.limit].to(device) for t in datasets.digits_like(root, "MNIST", "t10k"))
    for row in options.rows:
        for part, n in (("all", len(x)), ("a quarter", len(x) // 4)):
            for seed in options.seeds:
                start = time.perf_counter()
                for name, probs in predictions(row, (x[:n], y[:n]), x_test, options.epochs, seed):
                    yield {
                        "name": name, "part": part, "seed": seed, "epochs": options.epochs,
                        "error": 100 * (1 - po.metrics.accuracy(probs, y_test)), "nll": po.metrics.nll(probs, y_test),
                        "ece": po.metrics.ece(probs, y_test), "seconds": time.perf_counter() - start,
                    }  # fmt: skip


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--epochs", type=int, default=20)
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments.add_argument("--rows", nargs="+", default=list(ROWS))
    arguments.add_argument("--limit", type=int, help="use only this many images of each set (to try the script out)")
    options = arguments.parse_args()
    lines = report.gather(options, runs)
    if options.raw:
        return
    rows = []
    for part in ("all", "a quarter"):
        for name in dict.fromkeys(line["name"] for line in lines):
            mine = [line for line in lines if line["name"] == name and line["part"] == part]
            if not mine:
                continue
            cells = [
                report.spread([line[key] for line in mine], digits)
                for key, digits in (("error", 2), ("nll", 4), ("ece", 4))
            ]
            rows.append([part, name, len(mine), *cells])
    text = report.header("MNIST, LeNet: dropout and its averages", lines, epochs=lines[0]["epochs"], masks=SAMPLES)
    columns = ["data", "method", "seeds", "test error %", "NLL", "ECE (15 bins)"]
    report.publish("mnist_dropout", text + "\n" + report.table(columns, rows), options.out)


if __name__ == "__main__":
    main()
