"""Digits and clothes: two specialists, fine-tuned from one base, merged into a network that knows both.

LeNet with 20 outputs, the ten digits of MNIST and the ten clothes of Fashion-MNIST. The base has seen a few hundred
examples of each; a specialist goes on with one of the two alone. Accuracies count all 20 outputs: a merged network has
to tell digits from clothes as well.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import datasets
import report
import torch
from networks import lenet
from specialists import Data, Family, accuracy, copy_of, measure, publish, ways
from torch import nn

import posterity as po
from posterity.batches import batches
from posterity.curvature import diagonal_fisher
from posterity.merging.gram import gram_matrices
from posterity.posterior import Posterior
from posterity.trees import Tree

TASKS = {"digits": "MNIST", "clothes": "FashionMNIST"}
FEW, VALIDATION = 500, 1000


def network() -> nn.Sequential:
    model = lenet()
    model[-1] = nn.Linear(500, 20)
    return model


@dataclass(frozen=True)
class Task:
    """A few examples for the base, and the parts for a specialist."""

    few: Data
    train: Data
    validation: Data
    test: Data


def read(root: Any, number: int, name: str, options: argparse.Namespace, device: str) -> Task:
    """One of the two tasks, its labels from 10 · number on; the first examples of a shuffled training set each."""
    x, y = (t.to(device) for t in datasets.digits_like(root, name, "train"))
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0)).to(device)
    few, validation, train = order.split([FEW, VALIDATION, len(order) - FEW - VALIDATION])
    train = train[: options.examples]
    x_test, y_test = (t.to(device) for t in datasets.digits_like(root, name, "t10k"))
    parts = [(x[rows], y[rows] + 10 * number) for rows in (few, train, validation)]
    return Task(*parts, (x_test, y_test + 10 * number))


def train(model: nn.Module, data: Data, method: str, epochs: int, seed: int, prior: Any = 1.0) -> Posterior:
    """Train in place; hand over the posterior (a point's for AdamW)."""
    settings = {"prior": prior} if method == "ivon" else {}
    run = po.fit(model, data, method=method, epochs=epochs, batch_size=64, seed=seed, schedule="cosine",
                 likelihood="categorical", progress=False, **settings)  # fmt: skip
    return run.posterior


def scores(model: nn.Module, tasks: Mapping[str, Task], part: str) -> dict[str, float]:
    return {name: accuracy(model, getattr(task, part)) for name, task in tasks.items()}


def fisher(model: nn.Module, data: Data) -> Tree:
    return diagonal_fisher(model, batches(data), "categorical")


def grams(model: nn.Module, data: Data) -> Tree:
    return gram_matrices(model, batches(data))


def both(parts: list[Data]) -> Data:
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def study(tasks: Mapping[str, Task], method: str, options: argparse.Namespace, seed: int) -> Iterator[report.Line]:
    torch.manual_seed(seed)
    few = both([task.few for task in tasks.values()])
    base = network().to(few[0].device)
    of_base = train(base, few, method, 10 * options.epochs, seed)

    def again(data: Data, prior: Any, number: int) -> tuple[nn.Module, Posterior]:
        model = copy_of(base, network)
        return model, train(model, data, method, options.epochs, 10 * seed + number, prior)

    pairs = {name: again(task.train, of_base, i) for i, (name, task) in enumerate(tasks.items())}
    joint, _ = again(both([few, *(task.train for task in tasks.values())]), 1.0, 2)
    models, posteriors = ({name: pair[i] for name, pair in pairs.items()} for i in range(2))
    family = Family(base, of_base, few, models, posteriors, {name: task.train for name, task in tasks.items()})
    common = {"optimizer": method, "seed": seed, "epochs": options.epochs, "examples": options.examples}
    yield common | {"method": "base", "scores": scores(base, tasks, "test")}
    for name, model in models.items():
        yield common | {"method": f"specialist, {name}", "scores": scores(model, tasks, "test")}
    yield common | {"method": "joint training", "scores": scores(joint, tasks, "test")}
    found = ways(family, fisher, grams, own_hessian=method == "ivon")
    for line in measure(found, network().to(few[0].device), lambda model, part: scores(model, tasks, part)):
        yield common | line


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    root = datasets.folder(options.data)
    tasks = {name: read(root, i, folder, options, device) for i, (name, folder) in enumerate(TASKS.items())}
    for seed in options.seeds:
        for method in options.optimizers:
            yield from study(tasks, method, options, seed)


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    arguments.add_argument("--optimizers", nargs="+", default=["adamw", "ivon"], choices=["adamw", "ivon"])
    arguments.add_argument("--epochs", type=int, default=3)
    arguments.add_argument("--examples", type=int, default=10000, help="training examples of each specialist")
    options = arguments.parse_args()
    lines = report.gather(options, runs)
    if not options.raw:
        facts = {"epochs": lines[0]["epochs"], "examples_of_each_specialist": lines[0]["examples"]}
        publish("merge_vision", "Digits and clothes, LeNet", lines, options.out, **facts)


if __name__ == "__main__":
    main()
