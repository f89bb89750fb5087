"""`posterity fit` for the models cnn, mlp, linear and a factory: IVON, "variational" or AdamW?

Each model is trained on a few hundred rows by `posterity fit FILE --model MODEL --method METHOD` without other
options. Cross-validation chooses the length of each, so AdamW is stopped early. Figures are of held-out rows, from
draws of the weights. "Wrong labels" is the average precision of `posterity map` where a tenth of the labels was moved
to another class. For AdamW, which returns no posterior, it is that of the loss out of fold. The NLL beside it is that
of the same training on correct held-out labels. Pictures of 28 pixels are halved. The factory makes a network with skip
connections and layer normalisation. The NLL of amounts is that of the target in its own units. Seconds are of the
processor, on one thread, start-up left out.

The first group of data sets (`--groups chosen`, one seed) decided how each method is set up; the second was looked at
once. It kept the settings of tables for an mlp, which were ahead of those of `po.fit`. For a cnn it kept the length and
the budget of `po.fit`, which were ahead of the length with the lowest loss out of fold. For a linear model neither
these nor IVON's prior in place of weight decay made "variational" as good as IVON, which stays its default; on the
second group the two are level.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import report
import torch
import torch.nn.functional as F
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.metrics import average_precision_score
from torch import Tensor, nn
from typer.testing import CliRunner

from posterity.cli import app
from posterity.runs import RunFolder

WAYS = ("adamw", "ivon", "variational")
FACTORY, WRONG, TESTED = "run_methods:residual", 0.1, 1000
TABLES, NETWORKS, MODELS = ("mlp", "linear"), ("cnn", "mlp", FACTORY), ("cnn", "mlp", "linear", FACTORY)
# The rows to learn from, and the models that do.
CHOSEN_ON: dict[str, tuple[int, tuple[str, ...]]] = {
    "digits": (600, MODELS), "USPS": (600, MODELS), "wine": (89, TABLES), "breast cancer": (284, TABLES),
    "boston": (250, TABLES),
}  # fmt: skip
REPORTED_ON: dict[str, tuple[int, tuple[str, ...]]] = {
    "MNIST": (400, MODELS), "Fashion-MNIST": (400, NETWORKS), "KMNIST": (400, NETWORKS), "australian": (345, TABLES),
    "a7a": (1000, TABLES), "banana": (500, TABLES), "concrete": (500, TABLES), "energy": (384, TABLES),
}  # fmt: skip
GROUPS = {"chosen": (CHOSEN_ON, (101,)), "reported": (REPORTED_ON, (0,))}
AMOUNTS = ("boston", "concrete", "energy")
PICTURES = {"MNIST": "MNIST", "Fashion-MNIST": "FashionMNIST", "KMNIST": "KMNIST_test"}
Arrays = dict[str, np.ndarray]


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.gelu(self.layer(self.norm(x)))


def residual(inputs: tuple[int, ...], outputs: int) -> nn.Module:
    """The network of the factory."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(inputs), 64), _Block(64), _Block(64), nn.LayerNorm(64), nn.Linear(64, outputs)
    )


def rows(name: str, root: Path) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets; pictures as bytes."""
    bundled = {"wine": load_wine, "breast cancer": load_breast_cancer}
    if name in bundled:
        return bundled[name](return_X_y=True)
    if name in AMOUNTS:
        found = datasets.uci_regression(root, name)
        return found["X"], found["y"].ravel()
    if name == "digits":
        x, y = load_digits(return_X_y=True)
        return (x.reshape(-1, 8, 8) * 15).astype(np.uint8), y
    if name == "USPS":
        found = dict(np.load(root / "usps" / "usps.npz"))
        x = found["X_train"].astype(np.float32).reshape(-1, 16, 16)
        return (255 * (x - x.min()) / (x.max() - x.min())).astype(np.uint8), found["y_train"].astype(np.int64)
    if name in PICTURES:
        pictures, labels = datasets.digits_like(root, PICTURES[name], "t10k")
        return (255 * F.avg_pool2d(pictures, 2)[:, 0]).round().byte().numpy(), labels.numpy()
    found = datasets.tabular(root, {"australian": "australian_scale", "a7a": "adult_a7a"}.get(name, name))
    x, y = (found.get(key, found.get(f"{key}_train")) for key in ("X", "y"))
    return x, np.unique(y, return_inverse=True)[1].ravel()


def split(name: str, count: int, seed: int, root: Path) -> tuple[Arrays, Arrays]:
    """Rows to learn from, and others to test with."""
    x, y = rows(name, root)
    order = np.random.default_rng(seed).permutation(len(y))
    some, others = order[:count], order[count : count + TESTED]
    return {"x": x[some], "y": y[some]}, {"x": x[others], "y": y[others]}


def mislabelled(y: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels of which a tenth is another class, and which ones."""
    generator, classes = np.random.default_rng(1000 + seed), int(y.max()) + 1
    wrong = generator.random(len(y)) < WRONG
    return np.where(wrong, (y + generator.integers(1, classes, len(y))) % classes, y), wrong


def fitted(model: str, way: list[str], train: Arrays, test: Arrays, task: str, seed: int, folder: Path) -> report.Line:
    """Figures of one `posterity fit`, which leaves its run in the folder."""
    np.savez(folder / "train.npz", **train)
    np.savez(folder / "test.npz", **test)
    words = ["fit", str(folder / "train.npz"), "--target", "y", "--test", str(folder / "test.npz"), "--json"]
    words += ["--out", str(folder / "run"), "--overwrite", "--model", model, "--task", task, "--seed", str(seed)]
    began = time.process_time()
    answer = CliRunner().invoke(app, [*words, "--method", *way], catch_exceptions=False)
    seconds = time.process_time() - began
    if answer.exit_code:
        raise SystemExit(f"{words}: {answer.output}")
    found = json.loads(answer.stdout)
    return {**found["metrics"], "seconds": seconds, "steps": found["steps"], "lr": found["config"]["lr"]}


def found_wrong(folder: Path, wrong: np.ndarray) -> float:
    """Average precision of the suspects of a run, by its map or, without one, by the loss out of fold."""
    run = RunFolder.open(folder / "run")
    if run.config["method"] == "adamw":
        table, by = run.table("folds"), "label_error"
    else:
        found = run.memory_map()
        table, by = found.table, found.ranking
    ranked: Any = table.set_index("id")[by].reindex(range(len(wrong)))
    return float(average_precision_score(wrong, ranked.to_numpy()))


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    torch.set_num_threads(1)
    root = datasets.folder(options.data)
    done = {(line["data"], line["model"], line["seed"], line["method"]) for line in report.earlier(options.raw)}
    for group in options.groups:
        sets, seeds = GROUPS[group]
        for seed, model, name in itertools.product(seeds, options.models, sets):
            count, models = sets[name]
            if model not in models:
                continue
            train, test = split(name, count, seed, root)
            for method in options.methods:
                if (name, model, seed, method) in done:
                    continue
                line = {"group": group, "data": name, "model": model, "seed": seed, "method": method}
                yield line | of_one(model, method.split(), train, test, name in AMOUNTS, seed)


def of_one(model: str, way: list[str], train: Arrays, test: Arrays, amount: bool, seed: int) -> report.Line:
    """One training on the rows as they are and, where there are classes, one with wrong labels."""
    with tempfile.TemporaryDirectory() as place:
        folder, task = Path(place), "amount" if amount else "classes"
        line = fitted(model, way, train, test, task, seed, folder)
        if amount:
            return line
        labels, wrong = mislabelled(train["y"], seed)
        noisy = fitted(model, way, train | {"y": labels}, test, task, seed, folder)
        return line | {"noisy_nll": noisy["nll"], "found": found_wrong(folder, wrong)}


FIGURES = {
    "accuracy": ("accuracy", 3), "nll": ("NLL", 3), "ece": ("ECE", 3), "noisy_nll": ("NLL, wrong labels", 3),
    "found": ("wrong labels", 3), "seconds": ("seconds", 1),
}  # fmt: skip
AMOUNT_FIGURES = {"rmse": ("RMSE", 3), "nll": ("NLL", 3), "seconds": ("seconds", 1)}


def of_group(lines: list[report.Line], group: str) -> str:
    """A row for each data set and model, the figures of all methods in each cell; and means over data sets."""
    found: dict[tuple[str, str, str], list[report.Line]] = {}
    for line in lines:
        if line["group"] == group:
            found.setdefault((line["model"], line["data"], line["method"]), []).append(line)
    ways = list(dict.fromkeys(method for _, _, method in found))

    def mean(model: str, name: str, figure: str, way: str) -> float:
        return statistics.fmean(line.get(figure, math.nan) for line in found[model, name, way])

    text = f"\nIn each cell: {' / '.join(ways)}.\n"
    sets, _ = GROUPS[group]
    for title, figures in (("", FIGURES), ("\nAmounts:\n", AMOUNT_FIGURES)):
        body = []
        for model in MODELS:
            mine = [name for name in sets if all((model, name, way) in found for way in ways)]
            mine = [name for name in mine if (name in AMOUNTS) == bool(title)]
            cells = {name: [[mean(model, name, figure, way) for way in ways] for figure in figures] for name in mine}
            if len(mine) > 1:
                cells["**mean**"] = [[statistics.fmean(v) for v in zip(*row)] for row in zip(*cells.values())]
            for name, rows in cells.items():
                shown = (" / ".join(f"{v:.{d}f}" for v in row) for row, (_, d) in zip(rows, figures.values()))
                body.append(["factory" if model == FACTORY else model, name, *shown])
        if body:
            text += f"{title}\n" + report.table(["model", "data", *(name for name, _ in figures.values())], body)
    return text


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--groups", nargs="+", choices=list(GROUPS), default=list(GROUPS))
    arguments.add_argument("--methods", nargs="+", default=list(WAYS), help="with further options of `posterity fit`")
    arguments.add_argument("--models", nargs="+", choices=MODELS, default=["mlp", FACTORY, "cnn", "linear"])
    options = arguments.parse_args()
    lines = report.gather(options, runs)
    if options.raw:
        return
    text = report.header("Methods of `posterity fit`, for each model", lines)
    text += "\n" + (__doc__ or "").split("\n\n", 1)[1]
    titles = {"chosen": "Data that chose the set-up, seed 101", "reported": "Other data, seed 0"}
    for group, title in titles.items():
        if any(line["group"] == group for line in lines):
            text += f"\n### {title}\n{of_group(lines, group)}"
    report.publish("run_methods", text, options.out)


if __name__ == "__main__":
    main()
