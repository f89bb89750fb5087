"""Who finds wrong labels? A tenth of the labels is flipped, one network is trained on them, and scores are ranked.

Scores of the final network (loss, margin, leave-one-out NLL, self-influence eᵀVe, the change ‖Δp‖₁ of predictions,
leverage; V by a Kronecker Laplace posterior) stand beside scores accumulated over training by `MemoryTracker`
(self-influence and leave-one-out NLL with V from Adam's state; mean loss, confidence, area under the margin, TracIn)
and beside the confidence in the given label under five-fold cross-validation, which costs five trainings, and the
scores that cleanlab itself makes of the same cross-validation (POSTERITY_CLEANLAB_PYTHON names a Python that has it).
The table holds the AUROC of the flipped labels.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import datasets
import numpy as np
import report
import torch
import torch.nn.functional as F
from cifar_features import cifar10_features
from torch import Tensor, nn

import networks
import posterity as po
from posterity.batches import batches
from posterity.curvature import per_example_gradient_norms
from posterity.likelihoods import likelihood
from posterity.memory import MemoryTracker, memory_map
from posterity.metrics import auroc

FLIPPED = 0.1


@dataclass(frozen=True)
class Setting:
    """A data set with a network and how long it is trained."""

    data: Callable[[argparse.Namespace], tuple[Tensor, Tensor]]
    network: Callable[[], nn.Module]
    epochs: int
    batch_size: int = 64
    every: int = 1  # epochs between snapshots
    lr: float = 1e-3


def digits(options: argparse.Namespace) -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)


def fashion(options: argparse.Namespace) -> tuple[Tensor, Tensor]:
    return datasets.digits_like(datasets.folder(options.data), "FashionMNIST", "train")


def cifar10(options: argparse.Namespace) -> tuple[Tensor, Tensor]:
    return datasets.cifar10(datasets.folder(options.data), "train")


def borrowed(options: argparse.Namespace) -> tuple[Tensor, Tensor]:
    return cifar10_features(datasets.folder(options.data), options.limit)


SETTINGS = {
    "digits, 10 epochs": Setting(digits, lambda: networks.mlp((64, 100, 10)), 10),
    "digits, 100 epochs": Setting(digits, lambda: networks.mlp((64, 100, 10)), 100, every=5),
    "digits, memorised": Setting(digits, lambda: networks.mlp((64, 400, 10)), 150, batch_size=32, every=5),
    "Fashion-MNIST": Setting(fashion, networks.lenet, 20, batch_size=256),
    "CIFAR-10, ResNet-20": Setting(cifar10, networks.ResNet20, 30, batch_size=256, every=2),
    "CIFAR-10, borrowed features": Setting(borrowed, lambda: networks.mlp((1280, 256, 10)), 20, batch_size=256),
}
SCORES = {
    "loss": "loss, final",
    "margin": "margin, final",
    "loo_nll": "leave-one-out NLL, Kronecker, final",
    "self_influence": "self-influence eᵀVe, Kronecker, final",
    "sensitivity": "‖Δp‖₁, Kronecker, final (the published sensitivity)",
    "leverage": "leverage, Kronecker, final",
    "tracked_loss": "mean loss over training",
    "tracked_confidence": "mean confidence over training (Data Maps)",
    "tracked_margin": "area under the margin (AUM)",
    "tracked_tracin": "TracIn with itself, over training",
    "tracked_loo_nll": "leave-one-out NLL, Adam's state, over training",
    "tracked_self_influence": "self-influence eᵀVe, Adam's state, over training",
    "cross_validation": "confidence, five-fold cross-validation (five trainings)",
    "cleanlab_margin": "cleanlab, normalised margin of the same cross-validation",
    "cleanlab_adjusted": "cleanlab, self-confidence adjusted for classes, of the same cross-validation",
}
RISING_WHEN_RIGHT = {"margin", "tracked_confidence", "tracked_margin", "cross_validation"}
RISING_WHEN_RIGHT |= {"cleanlab_margin", "cleanlab_adjusted"}
CLEANLAB = """
import sys, numpy as np
from cleanlab.rank import get_label_quality_scores as quality
given = np.load(sys.argv[1])
labels, probs = given["labels"], given["probs"]
adjusted = quality(labels, probs, method="self_confidence", adjust_pred_probs=True)
np.savez(sys.argv[2], cleanlab_margin=quality(labels, probs, method="normalized_margin"), cleanlab_adjusted=adjusted)
"""


def flipped(y: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Labels of which a tenth is another class, and which ones."""
    generator = torch.Generator().manual_seed(seed)
    wrong = torch.rand(len(y), generator=generator) < FLIPPED
    other = (y + torch.randint(1, int(y.max()) + 1, y.shape, generator=generator)) % (int(y.max()) + 1)
    return torch.where(wrong, other, y), wrong


def train(setting: Setting, x: Tensor, y: Tensor, seed: int, watch: Callable[..., None] | None = None) -> nn.Module:
    """Train with Adam; `watch` is called with the model and its optimizer after some of the epochs."""
    torch.manual_seed(seed)
    model = setting.network().to(x.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=setting.lr)
    stream = batches((x, y), batch_size=setting.batch_size, shuffle=True, seed=seed)
    for epoch in range(setting.epochs):
        model.train()
        for batch in stream.epoch(epoch):
            optimizer.zero_grad()
            F.cross_entropy(model(batch.inputs), batch.targets).backward()
            optimizer.step()
        if watch is not None and (epoch + 1) % setting.every == 0:
            watch(model.eval(), optimizer)
    return model.eval()


@torch.no_grad()
def probabilities(model: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([model(part).softmax(-1) for part in x.split(1024)])


def cross_validated(setting: Setting, x: Tensor, y: Tensor, seed: int) -> Tensor:
    """The class probabilities of each example under a network that was trained without its fold."""
    fold = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed)).to(y.device) % 5
    probs = torch.zeros(len(y), int(y.max()) + 1, device=y.device)
    for k in range(5):
        inside = fold == k
        model = train(setting, x[~inside], y[~inside], seed)
        probs[inside] = probabilities(model, x[inside])
    return probs


def cleanlab(probs: Tensor, y: Tensor) -> dict[str, Tensor]:
    """What cleanlab makes of cross-validated probabilities, where it is installed."""
    python = os.environ.get("POSTERITY_CLEANLAB_PYTHON")
    if not python:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        given, found = f"{folder}/given.npz", f"{folder}/found.npz"
        np.savez(given, labels=y.cpu().numpy(), probs=probs.double().cpu().numpy())
        subprocess.run([python, "-c", CLEANLAB, given, found], check=True)
        return {name: torch.from_numpy(score) for name, score in np.load(found).items()}


def study(setting: Setting, options: argparse.Namespace, seed: int) -> report.Line:
    """AUROC of every score in one setting, and how long things took."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, clean = (part[: options.limit] for part in setting.data(options))
    noisy, wrong = flipped(clean, seed)
    x, y = x.to(device), noisy.to(device)
    tracker: list[MemoryTracker] = []
    tracin = torch.zeros(len(y))
    spent = {"snapshots": 0.0}

    def watch(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if not tracker:
            tracker.append(MemoryTracker(model, optimizer, (x, y), batch_size=1024))
        start = time.perf_counter()
        tracker[0].snapshot()
        spent["snapshots"] += time.perf_counter() - start
        law = likelihood("categorical")
        norms = [per_example_gradient_norms(model, b, law) for b in batches((x, y), batch_size=1024)]
        tracin.add_(torch.cat(norms).square().cpu())

    start = time.perf_counter()
    model = train(setting, x, y, seed, watch)
    spent["training and watching"] = time.perf_counter() - start
    start = time.perf_counter()
    posterior = po.laplace(model, (x, y), structure="kron", prior_precision=1.0)
    table = memory_map(model, posterior, (x, y), scores=("margin",), tracker=tracker[0]).table
    spent["posterior and map"] = time.perf_counter() - start
    scores = {name: torch.tensor(table[name].to_numpy()) for name in SCORES if name in table}
    scores["tracked_tracin"] = tracin
    if not options.no_cross_validation:
        start = time.perf_counter()
        probs = cross_validated(setting, x, y, seed)
        scores |= {"cross_validation": probs.gather(1, y[:, None])[:, 0].cpu(), **cleanlab(probs, y)}
        spent["cross-validation"] = time.perf_counter() - start
    found = {name: auroc(-s if name in RISING_WHEN_RIGHT else s, wrong) for name, s in scores.items()}
    accuracy = (table["prediction"] == table["label"]).mean()
    return {"auroc": found, "seconds": spent, "accuracy": float(accuracy)}


def main() -> None:
    parser = report.parser(__doc__)
    parser.add_argument("--settings", nargs="+", default=[name for name in SETTINGS if name.startswith("digits")])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--limit", type=int, help="use only so many examples (to try the script out)")
    parser.add_argument("--no-cross-validation", action="store_true")
    report.study(parser.parse_args(), runs, publish)


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    for name in options.settings:
        for seed in options.seeds:
            yield {"setting": name, "seed": seed, **study(SETTINGS[name], options, seed)}


def publish(lines: list[report.Line], options: argparse.Namespace) -> None:
    names = list(dict.fromkeys(line["setting"] for line in lines))
    mine = {name: [line for line in lines if line["setting"] == name] for name in names}
    rows: list[list[object]] = []
    for score, label in SCORES.items():
        found = [[line["auroc"][score] for line in mine[name] if score in line["auroc"]] for name in names]
        if any(found):
            rows.append([label, *(report.spread(values, 4) if values else "" for values in found)])
    accuracies = [f"{statistics.fmean(line['accuracy'] for line in mine[name]):.3f}" for name in names]
    rows.append(["accuracy on the noisy training labels", *accuracies])
    seeds = max(len(found) for found in mine.values())
    text = report.header("Wrong labels: AUROC of 10 % flipped labels", lines, seeds=seeds)
    text += "\n" + report.table(["score", *names], rows)
    text += (
        "\nWithout ±: one seed.\n\nSeconds: " + "; ".join(f"{name}: {_seconds(mine[name])}" for name in names) + "\n"
    )
    report.publish("label_noise", text, options.out)


def _seconds(lines: list[report.Line]) -> str:
    return ", ".join(
        f"{part} {statistics.fmean(line['seconds'][part] for line in lines):.0f}" for part in lines[0]["seconds"]
    )


if __name__ == "__main__":
    main()
