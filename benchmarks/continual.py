"""Streams of tasks: permuted MNIST (10 tasks, one head), split MNIST and split CIFAR-10 (5 tasks, five heads).

Average accuracy after the last task; published figures for the same networks stand beside ours. Settings are the
published ones where there are any (FROMP's for each stream; its memory and prior for K-priors), and none was chosen by
a result of this table. `--methods`, `--seeds` and `--streams` cut the study into processes that each append to a file
of their own (`--raw`); `--collect` makes one table of them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import report
import torch
from networks import cifar_net, mlp
from torch import nn

from posterity.adaptation import (
    EWC,
    SI,
    VCL,
    Combined,
    FineTuning,
    FunctionalPrior,
    Joint,
    KPrior,
    MultiHead,
    ReplayMemory,
    Strategy,
    Task,
    learn_stream,
    permuted,
    split,
)

PUBLISHED = {
    "permuted": {"EWC": 84.0, "SI": 86.0, "VCL": 93.0, "VCL + coreset": 94.6, "FROMP": 94.9, "FRORP": 94.6},
    "split": {"EWC": 63.1, "SI": 98.9, "VCL": 98.4, "VCL + coreset": 98.2, "FROMP": 99.0, "FRORP": 99.0},
    "cifar": {},
}
TITLES = {
    "permuted": "Permuted MNIST, 10 tasks (S-FSVI, published: 95.76)",
    "split": "Split MNIST, 5 tasks (S-FSVI, published: 99.54)",
    "cifar": "Split CIFAR-10, 5 tasks (nothing published for these five tasks alone)",
}


def permuted_methods(epochs: int) -> dict[str, Callable[[], Strategy]]:
    point: dict[str, Any] = {"epochs": epochs, "lr": 1e-3, "batch_size": 128, "schedule": "cosine"}
    clipped = {**point, "clip": 0.01}
    wide: dict[str, Any] = {**point, "lr": 5e-3, "batch_size": 256, "epochs": 3 * epochs}
    memory: dict[str, Any] = {"size": 200, "prior_precision": 1e-5}
    functional = {**memory, "tau": 0.5, "jitter": 1e-5}
    return {
        "fine-tuning": lambda: FineTuning(point),
        "EWC": lambda: EWC(point, 1e-5, strength=10.0),
        "SI": lambda: SI(point, strength=0.1),
        "replay": lambda: ReplayMemory(point, size=200, batch_size=256),
        "FROMP": lambda: FunctionalPrior(clipped, **functional),
        "FRORP": lambda: FunctionalPrior(clipped, **functional, by="random"),
        "FROMP-L2": lambda: FunctionalPrior(clipped, **functional, kernels="identity"),
        "K-prior": lambda: KPrior(point, **memory, batch_size=256),
        "EWC + functional + labels": lambda: Combined(point, **memory, batch_size=256),
        "VCL": lambda: VCL(wide, 1.0),
        "VCL + coreset": lambda: VCL(wide, 1.0, coreset=200, coreset_options={"epochs": 10 * epochs}),
        "IVON": lambda: VCL({**point, "lr": 0.1, "hess_init": 0.1}, 1.0, method="ivon"),
        "joint": lambda: Joint(point),
    }


def split_methods(epochs: int) -> dict[str, Callable[[], Strategy]]:
    point: dict[str, Any] = {"epochs": epochs, "lr": 1e-4, "batch_size": 128}
    clipped = {**point, "clip": 0.1}
    wide: dict[str, Any] = {**point, "lr": 1e-3, "batch_size": 256, "epochs": 3 * epochs, "schedule": "cosine"}
    memory: dict[str, Any] = {"size": 40, "prior_precision": 1e-3}
    functional = {**memory, "tau": 10.0, "jitter": 1e-6}
    return {
        "fine-tuning": lambda: FineTuning(point),
        "EWC": lambda: EWC(point, 1e-3, strength=100.0),
        "SI": lambda: SI(point, strength=1.0),
        "replay": lambda: ReplayMemory(point, size=40),
        "FROMP": lambda: FunctionalPrior(clipped, **functional),
        "FRORP": lambda: FunctionalPrior(clipped, **functional, by="random"),
        "FROMP-L2": lambda: FunctionalPrior(clipped, **functional, kernels="identity"),
        "K-prior": lambda: KPrior(point, **memory),
        "EWC + functional + labels": lambda: Combined(point, **memory),
        "VCL": lambda: VCL(wide, 1.0),
        "VCL + coreset": lambda: VCL(wide, 1.0, coreset=40, coreset_options={"epochs": 10 * epochs}),
        "IVON": lambda: VCL({**point, "lr": 0.1, "hess_init": 0.1}, 1.0, method="ivon"),
        "joint": lambda: Joint(point),
    }


def cifar_methods(epochs: int) -> dict[str, Callable[[], Strategy]]:
    point: dict[str, Any] = {"epochs": epochs, "lr": 1e-3, "batch_size": 256}
    clipped = {**point, "clip": 100.0}
    wide: dict[str, Any] = {**point, "epochs": 2 * epochs, "schedule": "cosine"}
    memory: dict[str, Any] = {"size": 200, "prior_precision": 1e-4}
    functional = {**memory, "tau": 10.0, "jitter": 1e-6}
    return {
        "fine-tuning": lambda: FineTuning(point),
        "EWC": lambda: EWC(point, 1e-4, strength=100.0),
        "SI": lambda: SI(point, strength=1.0),
        "replay": lambda: ReplayMemory(point, size=200),
        "FROMP": lambda: FunctionalPrior(clipped, **functional),
        "FRORP": lambda: FunctionalPrior(clipped, **functional, by="random"),
        "FROMP-L2": lambda: FunctionalPrior(clipped, **functional, kernels="identity"),
        "K-prior": lambda: KPrior(point, **memory, batch_size=256),
        "EWC + functional + labels": lambda: Combined(point, **memory, batch_size=256),
        "VCL": lambda: VCL(wide, 1.0),
        "VCL + coreset": lambda: VCL(wide, 1.0, coreset=200, coreset_options={"epochs": 5 * epochs}),
        "IVON": lambda: VCL({**wide, "lr": 0.1, "hess_init": 0.1}, 1.0, method="ivon"),
        "joint": lambda: Joint(point),
    }


METHODS = {"permuted": permuted_methods, "split": split_methods, "cifar": cifar_methods}
EPOCHS = {"permuted": 10, "split": 15, "cifar": 20}


def stream(name: str, root: Path, device: str, seed: int, tasks: int | None, limit: int | None) -> list[Task]:
    if name == "cifar":
        read = [datasets.cifar10(root, part) for part in ("train", "test")]
    else:
        read = [datasets.digits_like(root, "MNIST", part) for part in ("train", "t10k")]
        read = [(x.flatten(1), y) for x, y in read]
    parts = [(x[:limit].to(device), y[:limit].to(device)) for x, y in read]
    if name == "permuted":
        return permuted(parts[0], parts[1], tasks or 10, seed=seed)
    groups = [(2 * i, 2 * i + 1) for i in range(tasks or 5)]
    return split(parts[0], parts[1], groups)


def network(name: str, tasks: int, device: str) -> nn.Module:
    if name == "permuted":
        return mlp([784, 100, 100, 10]).to(device)
    body = cifar_net(2 * tasks) if name == "cifar" else mlp([784, 256, 256, 2 * tasks])
    return MultiHead(body, tasks).to(device)


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    root = datasets.folder(options.data)
    for name in options.streams:
        epochs = options.epochs or EPOCHS[name]
        methods = METHODS[name](epochs)
        for method in options.methods or methods:
            for seed in options.seeds:
                tasks = stream(name, root, device, seed, options.tasks, options.limit)
                torch.manual_seed(seed)
                model = network(name, len(tasks), device)
                start = time.perf_counter()
                scores = learn_stream(model, tasks, methods[method](), seed=seed)
                yield {
                    "stream": name, "method": method, "seed": seed, "epochs": epochs, "average": 100 * scores.average,
                    "forgetting": 100 * scores.forgetting, "backward": 100 * scores.backward_transfer,
                    "ece": 100 * scores.calibration[-1].mean().item(), "seconds": time.perf_counter() - start,
                }  # fmt: skip


def publish(lines: list[report.Line], options: argparse.Namespace) -> None:
    memory = "200 examples a task (permuted MNIST, split CIFAR-10), 40 (split MNIST)"
    text = report.header("Streams of tasks", lines, memory=memory)
    for name in dict.fromkeys(line["stream"] for line in lines):
        rows = []
        for method in METHODS[name](1):
            mine = [line for line in lines if line["stream"] == name and line["method"] == method]
            if mine:
                cells = (report.spread([line[key] for line in mine], 2) for key in ("average", "forgetting", "ece"))
                seconds = report.spread([line["seconds"] for line in mine], 0)
                rows.append([method, *cells, PUBLISHED[name].get(method, ""), seconds, len(mine)])
        head = ["method", "average accuracy", "forgetting", "calibration error", "published", "seconds", "seeds"]
        epochs = "/".join(str(e) for e in sorted({line["epochs"] for line in lines if line["stream"] == name}))
        text += f"\n### {TITLES[name]}\n\n{epochs} epochs a task (published: {EPOCHS[name]}; VCL longer, as in "
        text += "the script).\n\n" + report.table(head, rows)
    report.publish("continual", text, options.out)


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--streams", nargs="+", default=list(METHODS), choices=list(METHODS))
    arguments.add_argument("--methods", nargs="+", help="default: all")
    arguments.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    arguments.add_argument("--epochs", type=int, help="default: 10 (permuted), 15 (split), 20 (cifar)")
    arguments.add_argument("--tasks", type=int, help="default: 10 (permuted), 5 (the others)")
    arguments.add_argument("--limit", type=int, help="use only so many examples (to try the script out)")
    options = arguments.parse_args()
    lines = report.gather(options, runs)
    if not options.raw:
        publish(lines, options)


if __name__ == "__main__":
    main()
