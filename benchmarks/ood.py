"""Out of distribution: does the uncertainty of a classifier tell foreign images from its own kind?

LeNet trained on Fashion-MNIST looks at MNIST and KMNIST; a public ResNet-20 for CIFAR-10 looks at CIFAR-100. The score
is the entropy of the predictive, and the mutual information between label and weights where weights are uncertain.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import datasets
import report
import torch
from torch import Tensor, nn

import networks
import posterity as po
from posterity.prediction import Prediction

SAMPLES = 64
LAPLACE = {
    "Laplace, last layer": {"structure": "last_layer"},
    "Laplace, Kronecker": {"structure": "kron"},
    "Laplace, Kronecker, a prior for each layer": {"structure": "kron", "prior_precision": "marglik_layerwise"},
}
STUDIES = {"fashion": ("MNIST", "KMNIST"), "cifar": ("CIFAR-100",)}

Split = tuple[Tensor, Tensor]


def answers(
    model: nn.Module, data: Split, n: int, inputs: dict[str, Tensor]
) -> Iterator[tuple[str, dict[str, Prediction]]]:
    """The predictions of a model trained on n images, with its point estimate and with Laplace around it."""
    for name, options in LAPLACE.items():
        posterior = po.laplace(model, data, likelihood="categorical", n=n, batch_size=500, **options)
        if name == "Laplace, last layer":
            yield "point estimate", asked(model, posterior, inputs, samples=0)
        yield name, asked(model, posterior, inputs, samples=SAMPLES, method="linearised")


def asked(
    model: nn.Module, posterior: po.Posterior, inputs: dict[str, Tensor], samples: int, method: str = "sampled"
) -> dict[str, Prediction]:
    return {
        name: po.predict(model, posterior, x, samples=samples, method=method, batch_size=500)
        for name, x in inputs.items()
    }


def fashion(options: argparse.Namespace, root: Path, device: str) -> Iterator[report.Line]:
    x, y = (t[: options.limit].to(device) for t in datasets.digits_like(root, "FashionMNIST", "train"))
    x_test, y_test = datasets.digits_like(root, "FashionMNIST", "t10k")
    foreign = {"MNIST": "MNIST", "KMNIST": "KMNIST_test"}
    inputs = {"own": x_test} | {name: datasets.digits_like(root, folder, "t10k")[0] for name, folder in foreign.items()}
    inputs = {name: images[: options.limit].to(device) for name, images in inputs.items()}
    labels = y_test[: options.limit].to(device)
    for seed in options.seeds:
        for method in ("adamw", "ivon"):
            torch.manual_seed(seed)
            model = networks.lenet().to(device)
            run = po.fit(model, (x, y), method=method, epochs=options.epochs, batch_size=100, seed=seed)
            if method == "ivon":
                yield line("fashion", "IVON", asked(model, run.posterior, inputs, samples=SAMPLES), labels, seed)
                continue
            for name, found in answers(model, (x, y), len(x), inputs):
                yield line("fashion", name, found, labels, seed)


def cifar(options: argparse.Namespace, root: Path, device: str) -> Iterator[report.Line]:
    model = networks.ResNet20().to(device)
    model.load_state_dict(torch.load(root / "weights" / "cifar10_resnet20.pt", map_location=device, weights_only=True))
    x, y = (t.to(device) for t in datasets.cifar10(root, "train", imagenet=True))
    x_test, labels = (t[: options.limit].to(device) for t in datasets.cifar10(root, "test", imagenet=True))
    inputs = {"own": x_test, "CIFAR-100": datasets.cifar100_images(root, imagenet=True)[: options.limit].to(device)}
    for name, found in answers(model, (x[: options.limit], y[: options.limit]), len(x), inputs):
        yield line("cifar", name, found, labels, None)


def line(study: str, name: str, found: dict[str, Prediction], labels: Tensor, seed: int | None) -> report.Line:
    """What one method reaches: accuracy and NLL at home, AUROC by entropy and by mutual information abroad."""
    own = found["own"]
    figures: report.Line = {"study": study, "name": name, "seed": seed}
    figures["accuracy"] = 100 * po.metrics.accuracy(own.probs, labels)
    figures["nll"] = po.metrics.nll(own.probs, labels)
    for other in STUDIES[study]:
        figures[f"{other}, entropy"] = po.metrics.ood_auroc(own.entropy, found[other].entropy)
        if name != "point estimate":
            inside, outside = own.mutual_information, found[other].mutual_information
            figures[f"{other}, mutual information"] = po.metrics.ood_auroc(inside, outside)
    return figures


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    root = datasets.folder(options.data)
    if "fashion" in options.studies:
        yield from fashion(options, root, device)
    if "cifar" in options.studies:
        yield from cifar(options, root, device)


def table(lines: list[report.Line], study: str) -> str:
    scores = [f"{other}, {score}" for score in ("entropy", "mutual information") for other in STUDIES[study]]
    rows = []
    for name in dict.fromkeys(entry["name"] for entry in lines):
        mine = [entry for entry in lines if entry["name"] == name]
        digits = {"accuracy": 2, "nll": 4} | dict.fromkeys(scores, 4)
        cells = [
            report.spread([entry[key] for entry in mine], d) if key in mine[0] else "–" for key, d in digits.items()
        ]
        rows.append([name, *cells])
    columns = ["method", "test accuracy %", "NLL", *(f"AUROC {score}" for score in scores)]
    return report.table(columns, rows)


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--studies", nargs="+", choices=list(STUDIES), default=list(STUDIES))
    arguments.add_argument("--epochs", type=int, default=20, help="of training on Fashion-MNIST")
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of training on Fashion-MNIST")
    arguments.add_argument("--limit", type=int, help="use only this many images of each set, for a quick look")
    options = arguments.parse_args()
    lines = report.gather(options, runs)
    if options.raw:
        return
    titles = {"fashion": "LeNet trained on Fashion-MNIST", "cifar": "ResNet-20 trained on CIFAR-10 (public weights)"}
    text = report.header(
        "Out of distribution",
        lines,
        epochs=options.epochs,
        seeds=options.seeds,
        draws=SAMPLES,
        images=options.limit or "all",
    )
    for study in dict.fromkeys(entry["study"] for entry in lines):
        text += f"\n### {titles[study]}\n\n" + table([entry for entry in lines if entry["study"] == study], study)
    report.publish("ood", text, options.out)


if __name__ == "__main__":
    main()
