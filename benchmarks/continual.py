"""Streams of tasks: permuted MNIST (10 tasks, one head), split MNIST and split CIFAR-10 (5 tasks, five heads).

Average accuracy after the last task; published figures for the same networks stand beside ours. Settings are the
published ones where there are any (FROMP's for each stream; its memory and prior for K-priors); `CHOSEN` says what was
chosen, which `--change` does, and how. `--methods`, `--seeds` and `--streams` cut the study into processes that
each append to a file of their own (`--raw`); `--collect` makes one table of them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import datasets
import report
import torch
from torch import nn

from networks import cifar_net, mlp
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
    "permuted": {
        "EWC": 84.0,
        "SI": 86.0,
        "VCL": 93.0,
        "VCL + coreset": 94.6,
        "FROMP": 94.9,
        "FRORP": 94.6,
        "FROMP-L2": 94.6,
    },
    "split": {
        "EWC": 63.1,
        "SI": 98.9,
        "VCL": 98.4,
        "VCL + coreset": 98.2,
        "FROMP": 99.0,
        "FRORP": 99.0,
        "FROMP-L2": 98.7,
    },
    "cifar": {},
}
TITLES = {
    "permuted": "Permuted MNIST, 10 tasks (S-FSVI, published: 95.76)",
    "split": "Split MNIST, 5 tasks (S-FSVI, published: 99.54)",
    "cifar": "Split CIFAR-10, 5 tasks (nothing published for these five tasks alone)",
}
HEAD = ["method", "average accuracy", "forgetting", "calibration error", "published", "epochs", "seconds", "seeds"]
TRIED = 100  # the first of the seeds that settings are chosen on, and no row is made of
CHOSEN = (
    "Settings are those published for FROMP, whose memory and prior K-priors share. Chosen by test accuracy, on a "
    "stream of another seed than those shown: strengths of EWC, SI and K-priors (the three terms together have that "
    "of K-priors), FROMP's τ on split CIFAR-10 (published for six other tasks: 10), SI's learning rate on split "
    "MNIST, learning rates, priors and first widths of VCL and IVON, and IVON's β₂ and `clip_radius` on the split "
    "streams."
)


@dataclass(frozen=True)
class Protocol:
    """How a stream is learnt: what `po.fit` is given, and the settings of each method.

    Args:
        epochs: Passes over each task of methods that train a point.
        batch_size: Examples a step of these methods.
        lr: Their learning rate.
        schedule: Their schedule.
        clip: Largest norm of FROMP's gradient.
        size: Examples remembered of each task.
        prior_precision: δ of the Gaussians.
        tau: FROMP's τ.
        l2_tau: The same with identities for kernels.
        jitter: FROMP's ε.
        memory_batch: Memory examples a step of the other methods; all of them where None.
        kprior: How much a K-prior, also with labels, counts.
        ewc: λ of EWC.
        si: c of synaptic intelligence.
        si_damping: ξ of synaptic intelligence.
        si_lr: Learning rate of synaptic intelligence.
        vcl_epochs: Passes over each task of VCL, in batches of `vcl_batch`, and five times as many over its coresets.
        vcl_batch: Examples a step of VCL.
        vcl_lr: Learning rate of VCL, which falls to zero along a cosine.
        vcl_width: σ of VCL at the beginning of each task.
        vcl_prior: Precision of the prior of VCL before the first task.
        ivon_epochs: Passes over each task of IVON, in batches of `vcl_batch`.
        ivon_lr: Learning rate of IVON, which falls to zero along a cosine.
        ivon_hess: `hess_init` of IVON: its widths at the beginning of each task.
        ivon_prior: Precision of the prior of IVON before the first task.
        ivon_beta2: β₂ of IVON: "auto", or "default" for the one of `po.fit`.
        ivon_radius: `clip_radius` of IVON; none where 0.
        dropout: Rate of dropout in the network of methods that train a point; VCL and IVON have noise of their own.
    """

    epochs: int
    batch_size: int
    lr: float
    schedule: str
    clip: float
    size: int
    prior_precision: float
    tau: float
    l2_tau: float
    jitter: float
    memory_batch: int | None
    kprior: float
    ewc: float
    si: float
    si_damping: float
    si_lr: float
    vcl_epochs: int
    vcl_batch: int
    vcl_lr: float
    vcl_width: float
    vcl_prior: float
    ivon_epochs: int
    ivon_lr: float
    ivon_hess: float
    ivon_prior: float
    ivon_beta2: str = "auto"
    ivon_radius: float = 0.0
    dropout: float = 0.0

    def methods(self) -> dict[str, Callable[[], Strategy]]:
        """A fresh learner by name."""
        point = {"epochs": self.epochs, "batch_size": self.batch_size, "lr": self.lr, "schedule": self.schedule}
        clipped = {**point, "clip": self.clip}
        wide = {"batch_size": self.vcl_batch, "schedule": "cosine"}
        vcl = {**wide, "epochs": self.vcl_epochs, "lr": self.vcl_lr}
        core = {"epochs": 5 * self.vcl_epochs}
        ivon = {**wide, "epochs": self.ivon_epochs, "lr": self.ivon_lr, "hess_init": self.ivon_hess}
        ivon |= {"beta2": "auto"} if self.ivon_beta2 == "auto" else {}
        ivon |= {"clip_radius": self.ivon_radius} if self.ivon_radius else {}
        memory: dict[str, Any] = {"size": self.size, "prior_precision": self.prior_precision}
        functional = {**memory, "tau": self.tau, "jitter": self.jitter}
        identity = {**memory, "tau": self.l2_tau, "kernels": "identity"}
        weighted = {**memory, "batch_size": self.memory_batch}
        return {
            "fine-tuning": lambda: FineTuning(point),
            "EWC": lambda: EWC(point, self.prior_precision, strength=self.ewc),
            "SI": lambda: SI({**point, "lr": self.si_lr}, strength=self.si, damping=self.si_damping),
            "replay": lambda: ReplayMemory(point, **weighted),
            "FROMP": lambda: FunctionalPrior(clipped, **functional),
            "FRORP": lambda: FunctionalPrior(clipped, **functional, by="random"),
            "FROMP-L2": lambda: FunctionalPrior(clipped, **identity),
            "K-prior": lambda: KPrior(point, **weighted, strength=self.kprior),
            "EWC + functional + labels": lambda: Combined(point, **weighted, strength=self.kprior),
            "VCL": lambda: VCL(vcl, self.vcl_prior, width=self.vcl_width),
            "VCL + coreset": lambda: VCL(
                vcl, self.vcl_prior, width=self.vcl_width, coreset=self.size, coreset_options=core
            ),
            "IVON": lambda: VCL(ivon, self.ivon_prior, method="ivon"),
            "joint": lambda: Joint({**point, "batch_size": 4 * self.batch_size}),
        }

    def epochs_of(self, method: str) -> int:
        """Passes of a method over each task."""
        return {"VCL": self.vcl_epochs, "VCL + coreset": self.vcl_epochs, "IVON": self.ivon_epochs}.get(
            method, self.epochs
        )

    def dropout_of(self, method: str) -> float:
        """Rate of dropout in the network of a method."""
        return 0.0 if method in ("VCL", "VCL + coreset", "IVON") else self.dropout

    def changed(self, changes: Sequence[str]) -> Protocol:
        """The protocol with some "name=value" in place of its own."""
        pairs = dict(change.split("=") for change in changes)
        return replace(self, **{name: type(getattr(self, name))(value) for name, value in pairs.items()})


PROTOCOLS = {
    "permuted": Protocol(
        epochs=10, batch_size=128, lr=1e-3, schedule="cosine", clip=0.01, size=200, prior_precision=1e-5,
        tau=0.5, l2_tau=0.5, jitter=1e-5, memory_batch=256, kprior=10.0,
        ewc=10.0, si=0.5, si_damping=0.1, si_lr=1e-3,
        vcl_epochs=60, vcl_batch=512, vcl_lr=3e-3, vcl_width=0.05, vcl_prior=30.0,
        ivon_epochs=60, ivon_lr=1.0, ivon_hess=0.1, ivon_prior=30.0,
    ),
    "split": Protocol(
        epochs=15, batch_size=128, lr=1e-4, schedule="constant", clip=0.1, size=40, prior_precision=1e-3,
        tau=10.0, l2_tau=10.0, jitter=1e-6, memory_batch=None, kprior=10.0,
        ewc=1000.0, si=1.0, si_damping=1e-3, si_lr=1e-3,
        vcl_epochs=100, vcl_batch=256, vcl_lr=3e-3, vcl_width=0.01, vcl_prior=1.0,
        ivon_epochs=60, ivon_lr=0.5, ivon_hess=0.1, ivon_prior=1.0, ivon_beta2="default", ivon_radius=0.1,
    ),
    "cifar": Protocol(
        epochs=40, batch_size=256, lr=1e-3, schedule="cosine", clip=100.0, size=200, prior_precision=1e-4, dropout=0.25,
        tau=100.0, l2_tau=10.0, jitter=1e-6, memory_batch=256, kprior=30.0,
        ewc=100.0, si=1.0, si_damping=1e-3, si_lr=1e-3,
        vcl_epochs=80, vcl_batch=256, vcl_lr=1e-3, vcl_width=0.01, vcl_prior=1.0,
        ivon_epochs=80, ivon_lr=0.3, ivon_hess=1.0, ivon_prior=1.0, ivon_beta2="default", ivon_radius=0.1,
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


def network(name: str, tasks: int, dropout: float, device: str) -> nn.Module:
    if name == "permuted":
        return mlp([784, 100, 100, 10]).to(device)
    body = cifar_net(2 * tasks, dropout) if name == "cifar" else mlp([784, 256, 256, 2 * tasks])
    return MultiHead(body, tasks).to(device)


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    root = datasets.folder(options.data)
    for name in options.streams:
        protocol = PROTOCOLS[name].changed(options.change)
        methods = protocol.methods()
        for method in options.methods or methods:
            for seed in options.seeds:
                tasks = stream(name, root, device, seed, options.tasks, options.limit)
                torch.manual_seed(seed)
                model = network(name, len(tasks), protocol.dropout_of(method), device)
                start = time.perf_counter()
                scores = learn_stream(model, tasks, methods[method](), seed=seed)
                yield {
                    "stream": name, "method": method, "seed": seed, "epochs": protocol.epochs_of(method),
                    "average": 100 * scores.average, "forgetting": 100 * scores.forgetting,
                    "fresh": 100 * scores.accuracy.diagonal().mean().item(),
                    "ece": 100 * scores.calibration[-1].mean().item(), "seconds": time.perf_counter() - start,
                    "changed": options.change,
                }  # fmt: skip


def publish(lines: list[report.Line], options: argparse.Namespace) -> None:
    memory = "200 examples a task (permuted MNIST, split CIFAR-10), 40 (split MNIST)"
    text = report.header("Streams of tasks", lines, memory=memory) + f"\n{CHOSEN}\n"
    for name in dict.fromkeys(line["stream"] for line in lines):
        rows, shown = [], [line for line in lines if line["stream"] == name and line["seed"] < TRIED]
        for method in PROTOCOLS[name].methods():
            mine = [line for line in shown if line["method"] == method]
            if mine:
                found = (report.spread([line[key] for line in mine], 2) for key in ("average", "forgetting", "ece"))
                epochs = "/".join(str(e) for e in sorted({line["epochs"] for line in mine}))
                seconds = report.spread([line["seconds"] for line in mine], 0)
                rows.append([method, *found, PUBLISHED[name].get(method, ""), epochs, seconds, len(mine)])
        text += f"\n### {TITLES[name]}\n\n" + report.table(HEAD, rows) + tried(lines, name)
    report.publish("continual", text, options.out)


def tried(lines: list[report.Line], name: str) -> str:
    """What was tried to choose the settings of a stream, where the lines have it."""
    mine = [line for line in lines if line["stream"] == name and line["seed"] >= TRIED]
    rows = [
        [line["method"], ", ".join(line["changed"]), f"{line['average']:.2f}", f"{line['forgetting']:.2f}"]
        for line in sorted(mine, key=lambda line: (line["method"], -line["average"]))
    ]
    head = ["method", "settings", "average accuracy", "forgetting"]
    return f"\nTried on seed {TRIED}:\n\n" + report.table(head, rows) if rows else ""


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--streams", nargs="+", default=list(PROTOCOLS), choices=list(PROTOCOLS))
    arguments.add_argument("--methods", nargs="+", help="default: all")
    arguments.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    arguments.add_argument("--change", nargs="+", default=[], help="settings of the protocol, as name=value")
    arguments.add_argument("--tasks", type=int, help="default: 10 (permuted), 5 (the others)")
    arguments.add_argument("--limit", type=int, help="use only so many examples (to try the script out)")
    report.study(arguments.parse_args(), runs, publish)


if __name__ == "__main__":
    main()
