"""The noise of small regressions: `po.fit` as it comes, beside AdamW of the same length.

A perceptron with two hidden layers of 64 learns three quarters of a table, inputs and targets standardised. `po.fit`
takes its length and its noise from cross-validation: the noise is the mean squared error out of fold. AdamW learns for
as many epochs, and its noise is that of the training residuals. RMSE is in standard deviations of the target; NLL and
the share of held-out targets inside 90 % intervals use the mean and the standard deviation of the prediction. No
setting was chosen on these tables.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import datasets
import numpy as np
import report
import torch
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import posterity as po
from posterity import metrics

TABLES = ("diabetes", "yacht", "boston", "energy", "concrete")
OURS, PLAIN = "po.fit", "AdamW"
Z = 1.6449


def rows(name: str, seed: int, root: Path) -> list[Tensor]:
    """Training inputs, held-out inputs, training targets and held-out targets, standardised by the training part."""
    if name == "diabetes":
        x, y = load_diabetes(return_X_y=True)
    else:
        found = datasets.uci_regression(root, name)
        x, y = found["X"], found["y"]
    parts = train_test_split(x, y[:, None], test_size=0.25, random_state=seed)
    scaled = []
    for train, test in (parts[:2], parts[2:]):
        mean, std = train.mean(0), np.maximum(train.std(0), 1e-6)
        scaled += [torch.tensor((part - mean) / std, dtype=torch.float32) for part in (train, test)]
    return scaled


def perceptron(inputs: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    done = {(line["table"], line["seed"]) for line in report.earlier(options.raw)}
    for seed in options.seeds:
        for name in options.tables:
            if (name, seed) in done:
                continue
            root = Path() if name == "diabetes" else datasets.folder(options.data)
            x, x_test, y, y_test = rows(name, seed, root)
            ours = po.fit(perceptron(x.shape[1], seed), (x, y), seed=seed, progress=False)
            epochs, net = len(ours.history), perceptron(x.shape[1], seed)
            plain = po.fit(net, (x, y), method="adamw", epochs=epochs, seed=seed, progress=False)
            for by, run in ((OURS, ours), (PLAIN, plain)):
                p = po.predict(run.model, run.posterior, x_test)
                yield {
                    "table": name,
                    "rows": len(x),
                    "seed": seed,
                    "by": by,
                    "rmse": metrics.rmse(p.mean, y_test),
                    "nll": metrics.gaussian_nll(p.mean, p.std, y_test),
                    "coverage": metrics.coverage(p.mean - Z * p.std, p.mean + Z * p.std, y_test),
                }


def publish(lines: list[report.Line], out: str | None) -> None:
    text = report.header("The noise of small regressions", lines, seeds=sorted({line["seed"] for line in lines}))
    names = [name for name in TABLES if any(line["table"] == name for line in lines)]
    titles = {"nll": "NLL, lower is better:", "coverage": "Share inside 90 % intervals:", "rmse": "RMSE:"}
    for figure, title in titles.items():
        body = []
        for name in names:
            some = [line for line in lines if line["table"] == name]
            cells = [report.spread([line[figure] for line in some if line["by"] == by]) for by in (PLAIN, OURS)]
            body.append([name, some[0]["rows"], *cells])
        text += f"\n{title}\n\n" + report.table(["table", "training rows", PLAIN, OURS], body)
    report.publish("regression_noise", text, out)


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    arguments.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    options = arguments.parse_args()
    lines = report.gather(options, runs)
    if not options.raw:
        publish(lines, options.out)


if __name__ == "__main__":
    main()
