"""Prediction and memory at size: ResNet-20 on CIFAR-10, with times and peak memory.

Laplace posteriors (diagonal, and Kronecker factors: KFAC) of borrowed weights from the training images, sampled and
linearised predictions of the test images, the memory map of the training images. A plain pass forward (no gradients)
and one forward and back over the same images stand beside them as units. Each question is asked once of a single batch
to warm up, then `--runs` times; the smallest wall time counts. Peak memory is what torch has allocated on the GPU at
most during the question, without what was there before; images stay in main memory.
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
import torch.nn.functional as F
from torch import Tensor, nn

import networks
import posterity as po
from posterity.prediction import Prediction

Split = tuple[Tensor, Tensor]
STRUCTURES = {"diag": "diagonal", "kron": "Kronecker (KFAC)"}


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def network(root: Path) -> nn.Module:
    weights = torch.load(root / "weights" / "cifar10_resnet20.pt", map_location="cpu", weights_only=True)
    model = networks.ResNet20()
    model.load_state_dict(weights)
    return model.to(device()).eval()


def measured(question: Callable[[], Any], runs: int) -> tuple[Any, float, float]:
    """The answer, the smallest seconds, and the largest memory in GB (0 without a GPU)."""
    seconds, peak, answer = [], 0.0, None
    for _ in range(runs):
        answer = None
        before = _reset()
        start = time.perf_counter()
        answer = question()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            peak = max(peak, (torch.cuda.max_memory_allocated() - before) / 1e9)
        seconds.append(time.perf_counter() - start)
    return answer, min(seconds), peak


def _reset() -> int:
    if not torch.cuda.is_available():
        return 0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def forward(model: nn.Module, x: Tensor, batch_size: int) -> None:
    with torch.no_grad():
        for part in x.split(batch_size):
            model(part.to(device()))


def forward_and_back(model: nn.Module, data: Split, batch_size: int) -> None:
    for x, y in zip(data[0].split(batch_size), data[1].split(batch_size), strict=True):
        model.zero_grad()
        F.cross_entropy(model(x.to(device())), y.to(device())).backward()
    model.zero_grad()


def quality(p: Prediction, labels: Tensor) -> str:
    scores = (f"{100 * po.metrics.accuracy(p.probs, labels):.2f} %", f"NLL {po.metrics.nll(p.probs, labels):.3f}")
    return ", ".join((*scores, f"ECE {po.metrics.ece(p.probs, labels):.3f}"))


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    root = datasets.folder(options.data)
    model = network(root)
    train: Split = tuple(t[: options.train] for t in datasets.cifar10(root, "train", imagenet=True))  # type: ignore[assignment]
    x_test, labels = (t[: options.test] for t in datasets.cifar10(root, "test", imagenet=True))
    size, samples = options.batch_size, options.samples

    def ask(name: str, images: int, question: Callable[[int], Any], said: Callable[[Any], str] = lambda _: "") -> Any:
        question(min(size, images))
        answer, seconds, peak = measured(lambda: question(images), options.runs)
        lines.append({"name": name, "images": images, "seconds": seconds, "peak": peak, "said": said(answer)})
        return answer

    lines: list[report.Line] = []
    n, m = len(train[0]), len(x_test)
    ask("forward, no gradients", m, lambda k: forward(model, x_test[:k], size))
    ask("forward and back", n, lambda k: forward_and_back(model, (train[0][:k], train[1][:k]), size))
    for structure, shape in STRUCTURES.items():
        posterior = ask(
            f"Laplace, {shape}, learnt prior precision",
            n,
            lambda k, s=structure: po.laplace(model, (train[0][:k], train[1][:k]), structure=s, batch_size=size),
            lambda q: f"δ = {next(iter(q.prior.precision.values())).item():.3g}",
        )
        for method in ("sampled", "linearised"):
            ask(
                f"{method}, {samples} samples, {shape}",
                m,
                lambda k, q=posterior, how=method: po.predict(
                    model, q, x_test[:k], samples=samples, method=how, batch_size=size
                ),
                lambda p: quality(p, labels),
            )
        ask(
            f"memory map, {shape}",
            n,
            lambda k, q=posterior: po.memory_map(model, q, (train[0][:k], train[1][:k]), batch_size=size),
            lambda found: f"effective dimension {found.reliability.effective_dimension:.0f}",
        )
        yield from lines
        lines.clear()


def table(lines: list[report.Line]) -> str:
    rows = []
    for line in lines:
        each = 1e6 * line["seconds"] / line["images"]
        peak = f"{line['peak']:.2f}" if line["peak"] else ""
        rows.append([line["name"], f"{line['images']:,}", f"{line['seconds']:.2f}", f"{each:.1f}", peak, line["said"]])
    return report.table(["", "images", "seconds", "µs an image", "peak memory, GB", ""], rows)


def main() -> None:
    parser = report.parser(__doc__)
    parser.add_argument("--train", type=int, default=50_000, help="training images")
    parser.add_argument("--test", type=int, default=10_000, help="test images")
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=2)
    options = parser.parse_args()
    lines = report.gather(options, runs)
    if options.raw:
        return
    title = "Prediction and memory of a ResNet-20 on CIFAR-10"
    text = report.header(title, lines, batch=options.batch_size, runs=options.runs) + "\n" + table(lines)
    report.publish("gpu_prediction_memory", text, options.out)


if __name__ == "__main__":
    main()
