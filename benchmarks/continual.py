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
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Protocol:
    """How a stream is learnt: what `po.fit` is given, and the settings of each method.

    Args:
        epochs: Passes over each task.
        point: Options of methods that train a point.
        clip: Largest norm of FROMP's gradient.
        wide: Options of VCL, whose noise takes longer; IVON's are those of a point.
        longer: VCL's passes for each of the others'.
        coreset_longer: Passes over a coreset for each of the others'.
        size: Examples remembered of each task.
        prior_precision: δ of the Gaussians.
        tau: FROMP's τ.
        jitter: FROMP's ε.
        batch_size: Memory examples a step; all of them where None.
        ewc: λ of EWC.
        si: c of synaptic intelligence.
    """

    epochs: int
    point: dict[str, Any]
    clip: float
    wide: dict[str, Any]
    longer: int
    coreset_longer: int
    size: int
    prior_precision: float
    tau: float
    jitter: float
    batch_size: int | None
    ewc: float
    si: float

    def methods(self, epochs: int) -> dict[str, Callable[[], Strategy]]:
        """A fresh learner by name."""
        point = {**self.point, "epochs": epochs}
        clipped = {**point, "clip": self.clip}
        wide = {**self.wide, "epochs": self.longer * epochs}
        coreset = {"coreset": self.size, "coreset_options": {"epochs": self.coreset_longer * epochs}}
        memory: dict[str, Any] = {"size": self.size, "prior_precision": self.prior_precision}
        functional = {**memory, "tau": self.tau, "jitter": self.jitter}
        return {
            "fine-tuning": lambda: FineTuning(point),
            "EWC": lambda: EWC(point, self.prior_precision, strength=self.ewc),
            "SI": lambda: SI(point, strength=self.si),
            "replay": lambda: ReplayMemory(point, size=self.size, batch_size=self.batch_size),
            "FROMP": lambda: FunctionalPrior(clipped, **functional),
            "FRORP": lambda: FunctionalPrior(clipped, **functional, by="random"),
            "FROMP-L2": lambda: FunctionalPrior(clipped, **functional, kernels="identity"),
            "K-prior": lambda: KPrior(point, **memory, batch_size=self.batch_size),
            "EWC + functional + labels": lambda: Combined(point, **memory, batch_size=self.batch_size),
            "VCL": lambda: VCL(wide, 1.0),
            "VCL + coreset": lambda: VCL(wide, 1.0, **coreset),
            "IVON": lambda: VCL({**point, "lr": 0.1, "hess_init": 0.1}, 1.0, method="ivon"),
            "joint": lambda: Joint(point),
        }


PROTOCOLS = {
    "permuted": Protocol(
        epochs=10, point={"lr": 1e-3, "batch_size": 128, "schedule": "cosine"}, clip=0.01,
        wide={"lr": 5e-3, "batch_size": 256, "schedule": "cosine"}, longer=3, coreset_longer=10,
        size=200, prior_precision=1e-5, tau=0.5, jitter=1e-5, batch_size=256, ewc=10.0, si=0.1,
    ),
    "split": Protocol(
        epochs=15, point={"lr": 1e-4, "batch_size": 128}, clip=0.1,
        wide={"lr": 1e-3, "batch_size": 256, "schedule": "cosine"}, longer=3, coreset_longer=10,
        size=40, prior_precision=1e-3, tau=10.0, jitter=1e-6, batch_size=None, ewc=100.0, si=1.0,
    ),
    "cifar": Protocol(
        epochs=20, point={"lr": 1e-3, "batch_size": 256}, clip=100.0,
        wide={"lr": 1e-3, "batch_size": 256, "schedule": "cosine"}, longer=2, coreset_longer=5,
        size=200, prior_precision=1e-4, tau=10.0, jitter=1e-6, batch_size=256, ewc=100.0, si=1.0,
    ),
}  # fmt: skip


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
        epochs = options.epochs or PROTOCOLS[name].epochs
        methods = PROTOCOLS[name].methods(epochs)
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
        for method in PROTOCOLS[name].methods(1):
            mine = [line for line in lines if line["stream"] == name and line["method"] == method]
            if mine:
                cells = (report.spread([line[key] for line in mine], 2) for key in ("average", "forgetting", "ece"))
                seconds = report.spread([line["seconds"] for line in mine], 0)
                rows.append([method, *cells, PUBLISHED[name].get(method, ""), seconds, len(mine)])
        head = ["method", "average accuracy", "forgetting", "calibration error", "published", "seconds", "seeds"]
        epochs = "/".join(str(e) for e in sorted({line["epochs"] for line in lines if line["stream"] == name}))
        text += (
            f"\n### {TITLES[name]}\n\n{epochs} epochs a task (published: {PROTOCOLS[name].epochs}; VCL longer, as in "
        )
        text += "the script).\n\n" + report.table(head, rows)
    report.publish("continual", text, options.out)


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--streams", nargs="+", default=list(PROTOCOLS), choices=list(PROTOCOLS))
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
