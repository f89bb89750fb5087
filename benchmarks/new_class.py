"""Fashion-MNIST, LeNet: a tenth class learnt, and a class forgotten, without training again.

Adding: a network that knows nine classes meets the tenth; `po.adapt`, with a posterior that carries a memory of one old
example in twenty, against training all ten classes from scratch, against fine-tuning on the new class alone, and
against doing nothing. The memory is part of what is kept of the old training; everything after it is timed.

Removing: a network that knows ten classes is to forget one; KL from the predictions of a network that never saw it, on
the removed class and on the others, against doing nothing, against masking the output and against training again from
another start. `po.adapt` remembers one example in five.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace

import datasets
import report
import torch
from torch import Tensor, nn

import posterity as po
from networks import lenet
from posterity.adaptation import select
from posterity.adaptation.heads import find_head, grown
from posterity.adaptation.penalties.kprior import outputs_of
from posterity.batches import Batch

CLASS = 9  # ankle boots are new; for the removal, any class will do
Data = tuple[Tensor, Tensor]


def part(data: Data, keep: Tensor) -> Data:
    return data[0][keep], data[1][keep]


def nine_outputs(seed: int, outputs: int, device: torch.device) -> nn.Module:
    torch.manual_seed(seed)
    model = lenet()
    model[-1] = nn.Linear(500, outputs)
    return model.to(device)


def trained(model: nn.Module, data: Data, epochs: int, seed: int) -> tuple[nn.Module, float]:
    start = time.perf_counter()
    run = po.fit(model, data, method="adamw", epochs=epochs, batch_size=128, seed=seed)
    return run.model, time.perf_counter() - start


def logits(model: nn.Module, data: Data) -> Tensor:
    return outputs_of(model, Batch(data[0], data[1], torch.arange(len(data[1]))))


def accuracies(model: nn.Module, test: Data) -> dict[str, float]:
    right = (logits(model, test).argmax(1) == test[1]).double()
    new = test[1] == CLASS
    return {
        "average": 100 * right.mean().item(),
        "old": 100 * right[~new].mean().item(),
        "new": 100 * right[new].mean().item(),
    }


def adding(train: Data, test: Data, options: argparse.Namespace, seed: int) -> Iterator[report.Line]:
    device, old, new = train[0].device, part(train, train[1] != CLASS), part(train, train[1] == CLASS)
    model, _ = trained(nine_outputs(seed, 9, device), old, options.epochs, seed)
    posterior = po.laplace(model, old, structure="diag", prior_precision=1.0)
    posterior = replace(posterior, memory=select(model, posterior, old, len(old[1]) // 20, seed=seed))
    head = find_head(model, old[0])
    scratch, full_time = trained(nine_outputs(seed, 10, device), train, options.epochs, seed)
    start = time.perf_counter()
    result = po.adapt(model, posterior, add=new, classes=10, epochs=options.passes, batch_size=256, seed=seed)
    seconds = time.perf_counter() - start
    naive, naive_time = trained(grown(model, head, 10), new, options.passes, seed)
    found = {
        "no adaptation": (grown(model, head, 10), 0.0),
        "fine-tuning": (naive, naive_time),
        "po.adapt": (result.model, seconds),
        "retraining": (scratch, full_time),
    }
    for name, (candidate, taken) in found.items():
        line = {"study": "add", "method": name, "seed": seed, "time": 100 * taken / full_time, "seconds": taken}
        yield line | accuracies(candidate, test)


class Masked(nn.Module):
    """A model whose output for one class is minus infinity."""

    def __init__(self, model: nn.Module, label: int) -> None:
        super().__init__()
        self.model, self.label = model, label

    def forward(self, x: Tensor) -> Tensor:
        """Logits without the class."""
        f = self.model(x).clone()
        f[:, self.label] = -30.0
        return f


def divergence(wanted: Tensor, found: Tensor) -> float:
    p, q = wanted.double().log_softmax(1), found.double().log_softmax(1)
    return (p.exp() * (p - q)).sum(1).mean().item()


def removing(train: Data, test: Data, options: argparse.Namespace, seed: int) -> Iterator[report.Line]:
    device = train[0].device
    model, _ = trained(nine_outputs(seed, 10, device), train, options.epochs, seed)
    posterior = po.laplace(model, train, structure="diag", prior_precision=1.0)
    left = part(train, train[1] != CLASS)
    scratch, full_time = trained(nine_outputs(seed + 100, 10, device), left, options.epochs, seed)
    start = time.perf_counter()
    result = po.adapt(
        model,
        posterior,
        data=train,
        memory=len(train[1]) // 5,
        remove=lambda batch: batch.targets == CLASS,
        epochs=options.passes,
        batch_size=128,
        seed=seed,
    )
    seconds = time.perf_counter() - start
    other, _ = trained(nine_outputs(seed + 200, 10, device), left, options.epochs, seed + 1)
    found = {
        "no adaptation": model,
        "masked output": Masked(model, CLASS),
        "po.adapt": result.model,
        "another retraining": other,
    }
    inside, outside = part(test, test[1] == CLASS), part(test, test[1] != CLASS)
    for name, candidate in found.items():
        taken = seconds if name == "po.adapt" else 0.0
        yield {
            "study": "remove", "method": name, "seed": seed, "time": 100 * taken / full_time,
            "removed": divergence(logits(scratch, inside), logits(candidate, inside)),
            "others": divergence(logits(scratch, outside), logits(candidate, outside)),
            "accuracy": accuracies(candidate, test)["old"],
        }  # fmt: skip


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    root = datasets.folder(options.data)
    train, test = (
        tuple(t[: options.limit].to(device) for t in datasets.digits_like(root, "FashionMNIST", name))
        for name in ("train", "t10k")
    )
    for study in options.studies:
        for seed in options.seeds:
            for line in {"add": adding, "remove": removing}[study](train, test, options, seed):
                yield line | {"n": len(train[1])}


def publish(lines: list[report.Line], options: argparse.Namespace) -> None:
    text = report.header("A class more, a class less (Fashion-MNIST, LeNet)", lines, epochs=options.epochs)
    time_column = {"time": ("time, % of retraining", 1)}
    columns = {
        "add": {"average": ("accuracy", 2), "old": ("old classes", 2), "new": ("new class", 2)} | time_column,
        "remove": {
            "removed": ("KL, removed class", 3),
            "others": ("KL, others", 3),
            "accuracy": ("accuracy, others", 2),
        }
        | time_column,
    }
    for study, title in (("add", "A tenth class is added"), ("remove", "A class is removed")):
        mine = [line for line in lines if line["study"] == study]
        methods = dict.fromkeys(line["method"] for line in mine)
        rows = [
            [
                m,
                *(
                    report.spread([line[key] for line in mine if line["method"] == m], d)
                    for key, (_, d) in columns[study].items()
                ),
            ]
            for m in methods
        ]
        sizes = "/".join(str(n) for n in sorted({line["n"] for line in mine}))
        seeds = len({line["seed"] for line in mine})
        text += f"\n### {title} ({sizes} training examples, {seeds} seeds)\n\n" + report.table(
            ["method", *(name for name, _ in columns[study].values())], rows
        )
    report.publish("new_class", text, options.out)


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--studies", nargs="+", default=["add", "remove"], choices=["add", "remove"])
    arguments.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    arguments.add_argument("--epochs", type=int, default=20)
    arguments.add_argument("--passes", type=int, default=10, help="passes over the new data, or over the memory")
    arguments.add_argument("--limit", type=int, help="use only so many examples (to try the script out)")
    report.study(arguments.parse_args(), runs, publish)


if __name__ == "__main__":
    main()
