"""Bayes by backprop with convolutional networks on MNIST and CIFAR-10, beside a point estimate and MC dropout.

Prior and effective sample size of Bayes by backprop are chosen by the NLL of the last 5000 training images, in a third
of the epochs; every row is then trained on all training images. No augmentation. Predictions average 30 draws.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator

import datasets
import report
import torch
from torch import Tensor, nn

import networks
import posterity as po

Data = tuple[Tensor, Tensor]
HELD, BATCH, DRAWS = 5000, 128, 30
STUDIES: dict[str, tuple[Callable[[float], nn.Module], int]] = {
    "MNIST, LeNet": (lambda rate: networks.lenet(rate, 2 * rate), 12),
    "CIFAR-10, CNN": (lambda rate: networks.cifar_net(dropout=rate), 30),
}
SETTINGS = (
    {"prior": 1.0, "counts": 1},
    {"prior": 100.0, "counts": 1},
    {"prior": 100.0, "counts": 10},
    {"prior": 100.0, "counts": 100},
)
METHODS = ("adamw", "dropout", "bayes_by_backprop")


def read(study: str, options: argparse.Namespace) -> tuple[Data, Data]:
    """Training and test images on the device."""
    root = datasets.folder(options.data)
    if study.startswith("MNIST"):
        parts = datasets.digits_like(root, "MNIST", "train"), datasets.digits_like(root, "MNIST", "t10k")
    else:
        parts = datasets.cifar10(root, "train"), datasets.cifar10(root, "test")
    (x, y), (x_test, y_test) = ([t[: options.limit].to(options.device) for t in part] for part in parts)
    return (x, y), (x_test, y_test)


def backprop(study: str, data: Data, setting: dict[str, float], epochs: int, seed: int) -> po.Run:
    """Bayes by backprop; `counts` is the effective sample size as a multiple of N."""
    torch.manual_seed(seed)
    model = STUDIES[study][0](0.0).to(data[0].device)
    return po.fit(
        model, data, method="bayes_by_backprop", likelihood="categorical", epochs=epochs, batch_size=BATCH, lr=1e-3,
        schedule="cosine", seed=seed, prior=setting["prior"], ess=setting["counts"] * len(data[0]),
    )  # fmt: skip


def plain(study: str, data: Data, method: str, epochs: int, seed: int) -> po.Run:
    """AdamW, alone or with dropout."""
    torch.manual_seed(seed)
    model = STUDIES[study][0](0.25 if method == "dropout" else 0.0).to(data[0].device)
    return po.fit(
        model, data, method=method, likelihood="categorical", epochs=epochs, batch_size=BATCH, lr=1e-3,
        schedule="cosine", seed=seed,
    )  # fmt: skip


def scored(run: po.Run, test: Data, draws: int) -> dict[str, float]:
    """Accuracy, NLL and ECE of the test images."""
    probs = po.predict(run.model, run.posterior, test[0], samples=draws, batch_size=1000).probs
    return {
        "accuracy": 100 * po.metrics.accuracy(probs, test[1]), "nll": po.metrics.nll(probs, test[1]),
        "ece": po.metrics.ece(probs, test[1]),
    }  # fmt: skip


def tried(study: str, data: Data, epochs: int, numbers: list[int]) -> Iterator[report.Line]:
    """The held-out NLL of each of these settings."""
    held = min(HELD, len(data[0]) // 5)
    train, test = [t[:-held] for t in data], [t[-held:] for t in data]
    for number in numbers:
        run = backprop(study, (train[0], train[1]), SETTINGS[number], max(epochs // 3, 1), seed=100)
        nll = scored(run, (test[0], test[1]), DRAWS)["nll"]
        yield {"study": study, "tried": described(SETTINGS[number]), "number": number, "nll": nll}


def described(setting: dict[str, float]) -> str:
    return f"prior precision {setting['prior']:g}, ess {setting['counts']:g} N"


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    for study in options.studies:
        data, test = read(study, options)
        epochs = options.epochs or STUDIES[study][1]
        cifar = {"pictures": datasets.cifar_pictures(datasets.folder(options.data))} if "CIFAR" in study else {}
        if options.chosen:
            tries = [line for line in report.read(options.chosen) if line["study"] == study]
        else:
            tries = list(tried(study, data, epochs, options.settings))
            yield from tries
        best = SETTINGS[min(tries, key=lambda line: line["nll"])["number"]]
        for seed, method in itertools.product(options.seeds, options.methods):
            start = time.perf_counter()
            bayes = method == "bayes_by_backprop"
            run = backprop(study, data, best, epochs, seed) if bayes else plain(study, data, method, epochs, seed)
            minutes = (time.perf_counter() - start) / 60
            for draws in (0, DRAWS) if method != "adamw" else (0,):
                yield {
                    "study": study, "method": method, "draws": draws, "seed": seed, "epochs": epochs,
                    "setting": described(best) if bayes else "", "minutes": minutes, **scored(run, test, draws),
                    **cifar,
                }  # fmt: skip


NAMES = {
    ("adamw", False): "AdamW",
    ("dropout", False): "dropout, weights averaged",
    ("dropout", True): "MC dropout",
    ("bayes_by_backprop", False): "Bayes by backprop, mean",
    ("bayes_by_backprop", True): "Bayes by backprop",
}


def publish(lines: list[report.Line], options: argparse.Namespace) -> None:
    results = [line for line in lines if "method" in line]
    facts = {"draws": DRAWS, "batch": BATCH, "seeds": sorted({line["seed"] for line in results})}
    text = report.header("Bayes by backprop with convolutional networks", lines, **facts)
    text += "\n" + " ".join((__doc__ or "").split("\n\n", 1)[1].split()) + "\n\n"
    rows = []
    for key in dict.fromkeys((line["study"], line["method"], line["draws"] > 0) for line in results):
        mine = [line for line in results if (line["study"], line["method"], line["draws"] > 0) == key]
        cells = [report.spread([line[c] for line in mine], d) for c, d in (("accuracy", 2), ("nll", 4), ("ece", 4))]
        minutes = f"{sum(line['minutes'] for line in mine) / len(mine):.1f}"
        rows.append([key[0], NAMES[key[1:]], mine[0]["setting"], *cells, mine[0]["epochs"], minutes, len(mine)])
    columns = ["data, network", "method", "setting", "accuracy %", "NLL", "ECE", "epochs", "minutes", "runs"]
    text += report.table(columns, rows) + "\nHeld-out NLL of the settings that were tried:\n\n"
    tries = [[line["study"], line["tried"], f"{line['nll']:.4f}"] for line in lines if "tried" in line]
    report.publish("bayes_by_backprop", text + report.table(["data, network", "setting", "NLL"], tries), options.out)


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--studies", nargs="+", default=list(STUDIES), choices=list(STUDIES))
    arguments.add_argument("--epochs", type=int, help="epochs; by default 12 for MNIST and 30 for CIFAR-10")
    arguments.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    arguments.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    arguments.add_argument("--settings", type=int, nargs="+", default=list(range(len(SETTINGS))), help="to be tried")
    arguments.add_argument("--chosen", help="raw results of these tries, made before")
    arguments.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments.add_argument("--limit", type=int, help="use only this many images of each set (to try the script out)")
    report.study(arguments.parse_args(), runs, publish)


if __name__ == "__main__":
    main()
