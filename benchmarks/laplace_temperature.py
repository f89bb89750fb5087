"""The default prediction of a Laplace posterior beside that of the mean weights.

Networks are trained by AdamW in three ways: for a short and for a long time, and as `po.fit` does by default. "At the
mean" predicts without uncertainty. "T = 1" is the Laplace posterior with the prior of largest marginal likelihood and
linearised predictions. "Default" is `po.laplace` and `po.predict` as they come: the same posterior at the temperature T
of the last column. "laplace-torch" has the settings that laplace-torch takes by default (Kronecker factors of the last
layer, prior precision 1, probit). AUROC: foreign inputs (each column shuffled over the test rows) found by entropy.

The bound of 0.03 nats was chosen on the four problems of the first table (seed 0). The second table chose nothing.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import report
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from torch import Tensor, nn

import posterity as po

Problem = tuple[Tensor, Tensor, Tensor, Tensor]
CHOSE = ("digits, 200 rows", "breast cancer, 300 rows", "wine, 100 rows", "banana, 400 rows")
TEST = 1000
WAYS: dict[str, dict[str, Any]] = {"short": {"epochs": 60, "lr": 1e-3}, "long": {"epochs": 300, "lr": 1e-2}, "fit": {}}
CNN_WAYS: dict[str, dict[str, Any]] = {
    "short": {"epochs": 20, "lr": 1e-3},
    "long": {"epochs": 60, "lr": 3e-3},
    "fit": {},
}
DENSE = 2600  # weights up to which the full matrix is shown


def shuffled(x: Any, y: Any, n: int) -> Problem:
    """n rows to train on and at most a thousand to test, in a fixed random order."""
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))[: n + TEST]
    x = torch.as_tensor(np.asarray(x)[order.numpy()], dtype=torch.float32)
    y = torch.as_tensor(np.asarray(y)[order.numpy()]).long()
    return x[:n], y[:n], x[n:], y[n:]


def standardised(x: Any, y: Any, n: int) -> Problem:
    x, y, x_test, y_test = shuffled(x, y, n)
    centre, spread = x.mean(0), x.std(0)
    spread = torch.where(spread > 0, spread, 1.0)
    return (x - centre) / spread, y, (x_test - centre) / spread, y_test


def stored(root: Path, name: str, n: int) -> Problem:
    """Rows of a stored table with two classes."""
    found = np.load(root / f"{name}.npz")
    x, y = (next(found[key] for key in sorted(found) if key.lower().startswith(letter)) for letter in "xy")
    return standardised(x, y > 0, n)


def pictures(root: Path, name: str, n: int) -> Problem:
    return shuffled(*datasets.digits_like(root, name, "train"), n)


def usps(root: Path, n: int) -> Problem:
    found = np.load(root / "usps" / "usps.npz")
    return shuffled(found["X_train"] / 2000, found["y_train"], n)


PROBLEMS: dict[str, Callable[[Path], Problem]] = {
    "digits, 200 rows": lambda root: standardised(*load_digits(return_X_y=True), 200),
    "breast cancer, 300 rows": lambda root: standardised(*load_breast_cancer(return_X_y=True), 300),
    "wine, 100 rows": lambda root: standardised(*load_wine(return_X_y=True), 100),
    "banana, 400 rows": lambda root: stored(root, "tabular/banana", 400),
    "digits, 1000 rows": lambda root: standardised(*load_digits(return_X_y=True), 1000),
    "USPS, 300 rows": lambda root: usps(root, 300),
    "USPS, 1000 rows": lambda root: usps(root, 1000),
    "MNIST, 1000 rows (CNN)": lambda root: pictures(root, "MNIST", 1000),
    "Fashion, 2000 rows (CNN)": lambda root: pictures(root, "FashionMNIST", 2000),
    "Fashion, 1000 rows": lambda root: pictures(root, "FashionMNIST", 1000),
    "australian, 345 rows": lambda root: stored(root, "tabular/australian_scale", 345),
    "Adult (a7a), 1000 rows": lambda root: stored(root, "tabular/adult_a7a", 1000),
    "electricity, 1000 rows": lambda root: stored(root, "streams/electricity", 1000),
}


def network(problem: str, x: Tensor, classes: int) -> nn.Module:
    if "CNN" not in problem:
        return nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), 50), nn.ReLU(), nn.Linear(50, classes))
    layers = (nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 5, stride=2), nn.ReLU(), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(256, classes))


def scores(
    model: nn.Module, inputs: tuple[Tensor, Tensor], y: Tensor, posterior: po.Posterior, **how: Any
) -> tuple[float, float]:
    """NLL of the test rows, and AUROC of the foreign ones."""
    here, there = (po.predict(model, posterior, part, **how) for part in inputs)
    return po.metrics.nll(here.probs, y), po.metrics.ood_auroc(here.entropy, there.entropy)


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    done = {(line["problem"], line["way"]) for line in report.earlier(options.raw)}
    for problem in options.problems:
        x, y, x_test, y_test = PROBLEMS[problem](datasets.folder(options.data))
        generator = torch.Generator().manual_seed(1)
        mixed = [column[torch.randperm(len(column), generator=generator)] for column in x_test.flatten(1).T]
        foreign = torch.stack(mixed, 1).reshape(x_test.shape)
        for way, settings in (CNN_WAYS if "CNN" in problem else WAYS).items():
            if (problem, way) in done:
                continue
            seed = 0 if problem in CHOSE else 1
            torch.manual_seed(seed)
            model = network(problem, x, int(y.max()) + 1)
            po.fit(model, (x, y), method="adamw", batch_size=64, seed=seed, progress=False, **settings)

            last = po.laplace(model, (x, y), structure="last_layer", inner="kron", prior_precision=1.0)
            scored = partial(scores, model, (x_test, foreign), y_test)
            peer, at_mean = scored(last, method="probit"), scored(last, samples=0)
            accuracy = po.metrics.accuracy(po.predict(model, last, x_test, samples=0).probs, y_test)
            full = sum(p.numel() for p in model.parameters()) <= DENSE
            for structure in ("diag", "kron", "last_layer", *(["full"] if full else [])):
                default = po.laplace(model, (x, y), structure=structure)
                plain = po.laplace(model, (x, y), structure=structure, temperature=1.0)
                found = {"mean": at_mean, "plain": scored(plain), "default": scored(default), "peer": peer}
                case = {"problem": problem, "way": way, "structure": structure, "accuracy": accuracy}
                yield {**case, "found": found, "temperature": default.temperature}


def summary(lines: list[report.Line]) -> str:
    """How the three predictions with uncertainty compare with the mean, over all cases."""
    rows = []
    for key, name in (("plain", "T = 1"), ("default", "default"), ("peer", "laplace-torch")):
        ratios = [line["found"][key][0] / line["found"]["mean"][0] for line in lines]
        gained = [line["found"][key][1] - line["found"]["mean"][1] for line in lines]
        behind = f"{sum(r > 1.002 for r in ratios)} of {len(ratios)}"
        geometric = math.exp(sum(map(math.log, ratios)) / len(ratios))
        change = f"{sum(gained) / len(gained):+.3f}"
        rows.append([name, f"{geometric:.3f}", f"{min(ratios):.3f}", f"{max(ratios):.3f}", behind, change])
    columns = ["prediction", "NLL / mean's", "lowest", "highest", "above the mean's by over 0.2 %", "change of AUROC"]
    return report.table(columns, rows)


def cases(lines: list[report.Line]) -> str:
    rows = []
    for line in lines:
        cells = [f"{nll:.3f} ({auroc:.3f})" for nll, auroc in line["found"].values()]
        accuracy = f"{100 * line['accuracy']:.1f}"
        temperature = f"{line['temperature']:.2g}"
        rows.append([line["problem"], line["way"], line["structure"], accuracy, *cells, temperature])
    columns = ["data", "training", "structure", "accuracy %", "at the mean", "T = 1", "default", "laplace-torch", "T"]
    return report.table(columns, rows)


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--problems", nargs="+", default=list(PROBLEMS), choices=list(PROBLEMS))
    options = arguments.parse_args()
    torch.set_num_threads(1)
    lines = report.gather(options, runs)
    if options.raw:
        return
    order = list(PROBLEMS)
    lines.sort(key=lambda line: order.index(line["problem"]))
    text = report.header("The default prediction of a Laplace posterior", lines)
    text += "\n" + (__doc__ or "").split("\n\n", 1)[1].rstrip() + "\n"
    for title, chose in (("Problems that chose the bound", True), ("Problems that chose nothing", False)):
        some = [line for line in lines if (line["problem"] in CHOSE) == chose]
        if some:
            text += f"\n### {title}\n\n" + summary(some) + "\nTest NLL, and in brackets the AUROC:\n\n" + cases(some)
    report.publish("laplace_temperature", text, options.out)


if __name__ == "__main__":
    main()
