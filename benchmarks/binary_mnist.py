"""MNIST with binary weights: BayesBiNN against STE on a perceptron of three hidden layers of 2048 units.

Batch normalisation without learnt scales, no biases, dropout 0.2 at the input, cosine schedule. BayesBiNN predicts with
the likelier sign of each weight, and with 10 draws of the signs. Published at 500 epochs (from memory of the paper):
STE 98.85, BayesBiNN 98.86.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import datasets
import report
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from training import (
    Pass,
    add_options,
    averaged,
    changed,
    described,
    device,
    epochs,
    probabilities,
    publish_scores,
    scores,
    warm_cosine,
)

from posterity.optim import STE, BayesBiNN

SAMPLES, BINS = 10, 15
ROWS = {
    "STE": {"lr": 1e-3},
    "BayesBiNN": {"lr": 1e-4},
}


def network(width: int) -> nn.Sequential:
    def layer(fan_in: int, fan_out: int) -> list[nn.Module]:
        return [nn.Linear(fan_in, fan_out, bias=False), nn.BatchNorm1d(fan_out, affine=False)]

    return nn.Sequential(
        nn.Flatten(), nn.Dropout(0.2), *layer(784, width), nn.ReLU(), *layer(width, width), nn.ReLU(),
        *layer(width, width), nn.ReLU(), *layer(width, 10),
    )  # fmt: skip


def train(
    name: str, settings: dict[str, float], data: tuple[Tensor, Tensor], options: argparse.Namespace, seed: int
) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    (x, y), batch, steps = data, options.batch, len(data[0]) // options.batch
    model = network(options.width).to(x.device)
    if name == "STE":
        optimizer = STE(model.parameters(), **settings)
    else:
        optimizer = BayesBiNN(model.parameters(), ess=len(x), seed=seed, **settings)
    schedule = warm_cosine(optimizer, 1, options.epochs * steps)
    step = Pass(model, F.cross_entropy, x[:batch], y[:batch])
    for inputs, targets in epochs(x, y, batch, options.epochs, augment=False):
        optimizer.zero_grad()
        with optimizer.sampled_params(train=True):
            step(inputs, targets)
        optimizer.step()
        schedule.step()
    return model, optimizer


@torch.no_grad()
def at_the_mode(model: nn.Module, x: Tensor) -> Tensor:
    """Probabilities with the likelier sign of every weight."""
    kept = [p.detach().clone() for p in model.parameters()]
    for p in model.parameters():
        p.copy_(torch.where(p >= 0, 1.0, -1.0))
    found = probabilities(model, x)
    for p, value in zip(model.parameters(), kept, strict=True):
        p.copy_(value)
    return found


def split(options: argparse.Namespace) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    root = datasets.folder(options.data)
    x, y = datasets.digits_like(root, "MNIST", "train")
    held = (x[55000:], y[55000:]) if options.tune else datasets.digits_like(root, "MNIST", "t10k")
    x, y = (x[:55000], y[:55000]) if options.tune else (x, y)
    train_set, test_set = ([t[: options.limit].to(device()) for t in part] for part in ((x, y), held))
    return tuple(train_set), tuple(test_set)


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    data, (x_test, y_test) = split(options)
    for row in options.rows:
        settings = changed(ROWS[row], options.change)
        for seed in options.seeds:
            start = time.perf_counter()
            model, optimizer = train(row, settings, data, options, seed)
            minutes = (time.perf_counter() - start) / 60
            found = {"signs": at_the_mode(model, x_test)}
            if isinstance(optimizer, BayesBiNN):
                found[f"{SAMPLES} draws"] = averaged(model, optimizer, x_test, SAMPLES)
            for way, probs in found.items():
                yield {
                    "name": f"{row}, {way}", "settings": described(settings), "seed": seed, "epochs": options.epochs,
                    "batch": options.batch, "width": options.width, "tune": options.tune, "minutes": minutes,
                    "scores": scores(probs, y_test, BINS),
                }  # fmt: skip


def main() -> None:
    arguments = report.parser(__doc__)
    add_options(arguments, ROWS, epochs=100, batch=100)
    arguments.add_argument("--width", type=int, default=2048)
    options = arguments.parse_args()
    lines = report.gather(options, runs)
    if options.raw:
        return
    facts = {"batch": lines[0]["batch"], "width": lines[0]["width"], "ECE_bins": BINS}
    title = "MNIST, binary weights: BayesBiNN and STE"
    publish_scores("binary_mnist", title, lines, ["accuracy", "NLL", "ECE"], options.out, **facts)


if __name__ == "__main__":
    main()
