"""What the training studies share: a step without launches, a schedule, augmentation and batches on the device."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import datasets
import report
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import posterity as po

Loss = Callable[[Tensor, Tensor], Tensor]

PERCENT = ("accuracy", "top-5")
BREAKDOWN = 10.0  # points of accuracy behind the best run of its kind, from which a run counts as broken down


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def channels_last(x: Tensor) -> Tensor:
    """Images on a GPU in the order of memory that convolutions in bfloat16 ask for; all else as it is."""
    return x.contiguous(memory_format=torch.channels_last) if x.is_cuda and x.dim() == 4 else x


class Pass:
    """Forward and backward over batches of one shape.

    On a GPU it runs in bfloat16 where autocast allows, and is captured once and replayed, so that a small network is
    not held up by launching its kernels; `compiled` lets torch.compile join them first. Gradients are given in
    `.grad`: the same tensors every time, unless `own` asks for copies.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        x: Tensor,
        y: Tensor,
        *,
        autocast: bool = True,
        own: bool = False,
        compiled: bool = False,
    ) -> None:
        self.loss, self.autocast, self.own = loss, autocast, own
        self.model = torch.compile(model) if compiled and x.is_cuda else model
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.graph = torch.cuda.CUDAGraph() if x.is_cuda else None
        if self.graph is not None:
            self._capture(x, y)

    def _run(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.autocast and x.is_cuda, cache_enabled=False):
            f = self.model(x)
        value = self.loss(f.float(), y)
        value.backward()
        return value.detach()

    def _capture(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = channels_last(x.clone()), y.clone()
        self.gradients = [torch.zeros_like(p) for p in self.parameters]
        for p, g in zip(self.parameters, self.gradients, strict=True):
            p.grad = g
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._run(self.x, self.y)
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(self.graph):
            torch._foreach_zero_(self.gradients)
            self.value = self._run(self.x, self.y)
        for p in self.parameters:
            p.grad = None

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """The loss of a batch, whose gradients are in `.grad` afterwards."""
        if self.graph is None:
            return self._run(x, y)
        self.x.copy_(x)
        self.y.copy_(y)
        self.graph.replay()
        gradients = torch._foreach_mul(self.gradients, 1.0) if self.own else self.gradients
        for p, g in zip(self.parameters, gradients, strict=True):
            p.grad = g
        return self.value


def warm_cosine(
    optimizer: torch.optim.Optimizer, warmup: int, steps: int, floor: float = 0.0
) -> torch.optim.lr_scheduler.LambdaLR:
    """Linear warm-up, then a cosine down to a floor."""

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        done = (step - warmup) / max(steps - warmup, 1)
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def crop_and_flip(images: Tensor) -> Tensor:
    """A random shift by up to four pixels and a random mirror image, drawn for each image."""
    n, device = len(images), images.device
    padded = F.pad(images, (4, 4, 4, 4))
    shift = torch.randint(0, 9, (2, n), device=device)
    rows = (shift[0, :, None] + torch.arange(32, device=device))[:, None, :, None]
    columns = (shift[1, :, None] + torch.arange(32, device=device))[:, None, None, :]
    flip = torch.rand(n, device=device)[:, None, None, None] < 0.5
    columns = torch.where(flip, columns.flip(-1), columns)
    index = torch.arange(n, device=device)[:, None, None, None]
    return padded[index, torch.arange(3, device=device)[None, :, None, None], rows, columns]


def epochs(x: Tensor, y: Tensor, size: int, count: int, augment: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """Full batches of a data set that lies on the device; each epoch is augmented as a whole, in pieces."""
    for _ in range(count):
        images = torch.cat([crop_and_flip(part) for part in x.split(5000)]) if augment else x
        for index in torch.randperm(len(x), device=x.device)[: len(x) // size * size].split(size):
            yield images[index], y[index]


@torch.no_grad()
def probabilities(model: nn.Module, x: Tensor, size: int = 2000) -> Tensor:
    """Class probabilities of one pass over the data, in evaluation mode."""
    model.eval()
    found = []
    for part in x.split(size):
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
            f = model(channels_last(part))
        found.append(f.float().softmax(-1))
    model.train()
    return torch.cat(found)


def averaged(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, samples: int) -> Tensor:
    """Class probabilities averaged over samples of the posterior."""
    total = None
    for _ in range(samples):
        with optimizer.sampled_params():
            found = probabilities(model, x)
        total = found if total is None else total.add_(found)
    return total / samples


def cifar(root: Path, tune: bool, limit: int | None) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training and test part of CIFAR-10 on the device; to tune, the last 5000 training images stand for the test."""
    x, y = datasets.cifar10(root, "train")
    held = (x[45000:], y[45000:]) if tune else datasets.cifar10(root, "test")
    x, y = (x[:45000], y[:45000]) if tune else (x, y)
    (x, y), (x_test, y_test) = ([t[:limit].to(device()) for t in part] for part in ((x, y), held))
    return (x, y), (x_test, y_test)


def scores(probs: Tensor, y: Tensor, bins: int) -> dict[str, float]:
    """The figures of the published tables."""
    return {
        "accuracy": 100 * po.metrics.accuracy(probs, y),
        "top-5": 100 * po.metrics.top_k_accuracy(probs, y, k=5),
        "NLL": po.metrics.nll(probs, y),
        "ECE": po.metrics.ece(probs, y, bins=bins),
        "Brier": po.metrics.brier(probs, y),
        "AUROC": po.metrics.error_auroc(probs, y),
    }


def publish_scores(
    name: str, title: str, lines: list[report.Line], columns: list[str], out: str | None, **facts: object
) -> None:
    """A table with a row for each way to train and predict, and one table for each length of training."""
    lengths = sorted({line["epochs"] for line in lines})
    facts |= {"epochs": ", ".join(map(str, lengths)), "seeds": sorted({line["seed"] for line in lines})}
    if lines[0].get("tune"):
        facts["tested_on"] = "the last 5000 training images (for choosing settings)"
    text = report.header(title, lines, **facts)
    for length in lengths:
        text += f"\n### {length} epochs\n" if len(lengths) > 1 else ""
        text += "\n" + score_table([line for line in lines if line["epochs"] == length], columns)
    report.publish(name, text, out)


def score_table(lines: list[report.Line], columns: list[str]) -> str:
    """A row for each way; runs that broke down have rows of their own, so that no mean hides them."""
    rows = []
    for label in dict.fromkeys(line["name"] for line in lines):
        mine = [line for line in lines if line["name"] == label]
        best = max(line["scores"]["accuracy"] for line in mine)
        broken = [line for line in mine if line["scores"]["accuracy"] < best - BREAKDOWN]
        whole = [line for line in mine if line not in broken]
        for shown, ways in ((label, whole), (f"{label}: broke down", broken)):
            if ways:
                rows.append([shown, ways[0]["settings"], *cells(ways, columns), len(ways)])
    return report.table(["method", "settings", *columns, "minutes", "runs"], rows)


def cells(lines: list[report.Line], columns: list[str]) -> list[str]:
    """Mean and spread of each score, and the mean of minutes."""
    found = [report.spread([line["scores"][c] for line in lines], 2 if c in PERCENT else 3) for c in columns]
    return [*found, f"{sum(line['minutes'] for line in lines) / len(lines):.1f}"]


def add_options(arguments: argparse.ArgumentParser, rows: Iterable[str], epochs: int, batch: int) -> None:
    """The options that all studies of images have."""
    arguments.add_argument("--rows", nargs="+", default=list(rows), choices=list(rows))
    arguments.add_argument("--change", nargs="+", default=[], help="key=value: options of the rows' optimizers")
    arguments.add_argument("--tune", action="store_true", help="hold out the last 5000 training images instead")
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0])
    arguments.add_argument("--epochs", type=int, default=epochs)
    arguments.add_argument("--batch", type=int, default=batch)
    arguments.add_argument("--limit", type=int, help="use only so many images")


def changed(options: dict[str, float], changes: Iterable[str]) -> dict[str, float]:
    """Options with the changes of the command line."""
    return options | {key: float(value) for key, value in (change.split("=") for change in changes)}


def described(options: dict[str, float]) -> str:
    return ", ".join(f"{key} {value:g}" for key, value in options.items())
