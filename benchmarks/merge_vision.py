"""Digits and clothes: two specialists, fine-tuned from one base, merged into a network that knows both.

A perceptron with 200 hidden units and 20 outputs, the ten digits of MNIST and the ten clothes of Fashion-MNIST. The
base has seen a few hundred examples of each; a specialist goes on with one of the two alone. Accuracies count all 20
outputs: a merged network has to tell digits from clothes as well. `--tune` tries five learning rates for each
optimizer, with a seed that the table does not report; specialists' own validation data choose (`--tried`).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import datasets
import report
import torch
from specialists import (
    TUNING,
    Data,
    Family,
    Scores,
    Settings,
    accuracy,
    copy_of,
    measure,
    parser,
    publish,
    sizes,
    studies,
    tune,
    ways,
)
from torch import nn

import posterity as po
from networks import mlp
from posterity.batches import batches
from posterity.curvature import diagonal_fisher
from posterity.merging.gram import gram_matrices
from posterity.posterior import Posterior
from posterity.trees import Tree

TASKS = {"digits": "MNIST", "clothes": "FashionMNIST"}
FEW, VALIDATION = 500, 1000
TRIES: dict[str, list[Settings]] = {
    "adamw": [{"lr": lr} for lr in (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)],
    "ivon": [{"lr": lr} for lr in (0.03, 0.1, 0.3, 1.0, 3.0)],
}


def network() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), *mlp((784, 200, 20)))


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


def train(
    model: nn.Module, data: Data, method: str, settings: Settings, epochs: int, seed: int, prior: Any = 1.0
) -> Posterior:
    """Train in place; return the posterior (a point's for AdamW)."""
    given = {"prior": prior} if method == "ivon" else {}
    run = po.fit(model, data, method=method, epochs=epochs, batch_size=64, seed=seed, schedule="cosine",
                 likelihood="categorical", progress=False, **settings, **given)  # fmt: skip
    return run.posterior


def scores(model: nn.Module, tasks: Mapping[str, Task], part: str) -> dict[str, float]:
    return {name: accuracy(model, getattr(task, part)) for name, task in tasks.items()}


def fisher(model: nn.Module, data: Data) -> Tree:
    return diagonal_fisher(model, batches(data), "categorical")


def grams(model: nn.Module, data: Data) -> Tree:
    return gram_matrices(model, batches(data))


def both(parts: list[Data]) -> Data:
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def grow(tasks: Mapping[str, Task], method: str, settings: Settings, epochs: int, seed: int) -> Family:
    """Train base and specialists."""
    torch.manual_seed(seed)
    few = both([task.few for task in tasks.values()])
    base = network().to(few[0].device)
    of_base = train(base, few, method, settings, 10 * epochs, seed)
    models = {name: copy_of(base, network) for name in tasks}
    posteriors = {
        name: train(models[name], task.train, method, settings, epochs, 10 * seed + i, of_base)
        for i, (name, task) in enumerate(tasks.items())
    }
    return Family(base, of_base, few, models, posteriors, {name: task.train for name, task in tasks.items()})


def study(
    tasks: Mapping[str, Task], options: argparse.Namespace, method: str, settings: Settings, seed: int
) -> Iterator[report.Line]:
    family = grow(tasks, method, settings, options.epochs, seed)
    base, few, models = family.base, family.data, family.models
    joint = copy_of(base, network)
    together = both([few, *family.tasks.values()])
    train(joint, together, method, settings, options.epochs, 10 * seed + len(tasks))
    common = {"optimizer": method, "seed": seed, "epochs": options.epochs, "settings": settings, "sizes": sizes(tasks)}
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

    def validated(method: str, settings: Settings) -> Scores:
        models = grow(tasks, method, settings, options.epochs, TUNING).models
        return {name: accuracy(models[name], task.validation) for name, task in tasks.items()}

    if options.tune:
        return tune(TRIES, options.optimizers, validated)
    return studies(options, lambda *one: study(tasks, options, *one))


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--examples", type=int, help="training examples of each specialist; all by default")
    options = arguments.parse_args()
    lines = report.gather(options, runs)
    if not options.raw and not options.tune:
        publish("merge_vision", "Digits and clothes, a perceptron", lines, options.out, TRIES)


if __name__ == "__main__":
    main()
