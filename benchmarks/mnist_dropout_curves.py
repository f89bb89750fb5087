"""Test errors over the epochs of training: no dropout, dropout with averaged weights, and MC dropout, on MNIST.

The networks are those of `mnist_dropout.py`; after each epoch the test set is predicted in every way.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import datasets
import report
import torch
from mnist_dropout import BATCH, ROWS
from torch import Tensor

import networks
import posterity as po
from posterity.learning import Callback, Moment

MASKS = 20
WAYS = {
    "no dropout": {"no dropout": 0},
    "dropout at the end": {"dropout at the end": 0},
    "dropout everywhere": {"dropout everywhere, weight averaging": 0, "dropout everywhere, MC dropout": MASKS},
}


class Errors(Callback):
    """The test error in percent after each epoch, by each way to predict."""

    def __init__(self, ways: dict[str, int], x: Tensor, y: Tensor) -> None:
        self.ways, self.x, self.y = ways, x, y
        self.found: dict[str, list[float]] = {way: [] for way in ways}

    def epoch(self, moment: Moment) -> None:
        posterior = moment.posterior()
        for way, samples in self.ways.items():
            probs = po.predict(moment.model, posterior, self.x, samples=samples, batch_size=1000).probs
            self.found[way].append(100 * (1 - po.metrics.accuracy(probs, self.y)))


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    root = datasets.folder(options.data)
    x, y = (t[: options.limit].to(device) for t in datasets.digits_like(root, "MNIST", "train"))
    test = [t[: options.limit].to(device) for t in datasets.digits_like(root, "MNIST", "t10k")]
    for part, n in (("all", len(x)), ("a quarter", len(x) // 4)):
        for row, ways in WAYS.items():
            for seed in options.seeds:
                torch.manual_seed(seed)
                model, errors = networks.lenet(*ROWS[row]).to(device), Errors(ways, *test)
                po.fit(
                    model, (x[:n], y[:n]), method="adamw" if row == "no dropout" else "dropout", seed=seed,
                    likelihood="categorical", epochs=options.epochs, batch_size=BATCH, callbacks=[errors],
                )  # fmt: skip
                for way, found in errors.found.items():
                    yield {"name": way, "part": part, "seed": seed, "errors": found}


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--epochs", type=int, default=10)
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0])
    arguments.add_argument("--limit", type=int, help="use only this many images of each set (to try the script out)")
    options = arguments.parse_args()
    lines = report.gather(options, runs)
    if options.raw:
        return
    seeds = sorted({line["seed"] for line in lines})
    text = report.header("MNIST, LeNet: test error % after each epoch", lines, masks=MASKS, seeds=seeds)
    rows = []
    for part in ("all", "a quarter"):
        for name in dict.fromkeys(line["name"] for line in lines):
            mine = torch.tensor([line["errors"] for line in lines if (line["name"], line["part"]) == (name, part)])
            rows.append([part, name, *(f"{error:.2f}" for error in mine.mean(0).tolist())])
    columns = ["data", "method", *(str(epoch + 1) for epoch in range(len(lines[0]["errors"])))]
    report.publish("mnist_dropout_curves", text + "\n" + report.table(columns, rows), options.out)


if __name__ == "__main__":
    main()
