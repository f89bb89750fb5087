"""CamVid with a small Bayesian SegNet: mean IoU, and how well uncertainty points at wrong pixels."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import datasets
import report
import torch
from torch import Tensor

import networks
import posterity as po

CLASSES = (
    "sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist",
)  # fmt: skip
UNLABELLED = len(CLASSES)
PASSES = 40


def class_weights(labels: Tensor) -> Tensor:
    """Median-frequency balancing: rare classes count more."""
    counts = torch.bincount(labels[labels != UNLABELLED], minlength=UNLABELLED).float().clamp_min(1)
    return counts.median() / counts


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    root = datasets.folder(options.data)
    x, y = (t[: options.limit].to(device) for t in datasets.camvid(root, "train"))
    x_test, y_test = (t[: options.limit] for t in datasets.camvid(root, "test"))
    data = (torch.cat((x, x.flip(-1))), torch.cat((y, y.flip(-1))))  # each scene and its mirror image
    torch.manual_seed(options.seed)
    model = networks.SegNet().to(device)
    start = time.perf_counter()
    run = po.fit(
        model, data, method="dropout", likelihood="categorical", epochs=options.epochs, batch_size=8, n=len(x), lr=1e-3,
        ignore_index=UNLABELLED, class_weights=class_weights(y.cpu()), class_names=CLASSES, seed=options.seed,
    )  # fmt: skip
    seconds = time.perf_counter() - start
    for name, samples in (("weight averaging", 0), (f"MC dropout, {PASSES} passes", PASSES)):
        p = po.predict(model, run.posterior, x_test.to(device), samples=samples, batch_size=8)
        probs, entropy = p.probs.cpu(), p.entropy.cpu()
        known = y_test != UNLABELLED
        guess = probs.argmax(-1)
        yield {
            "name": name, "epochs": options.epochs, "seconds": seconds,
            "accuracy": (guess == y_test)[known].float().mean().item(),
            "iou": po.metrics.mean_iou(guess, y_test, classes=UNLABELLED, ignore_index=UNLABELLED),
            "auroc": po.metrics.auroc(entropy[known], (guess != y_test)[known]),
            "nll": po.metrics.nll(probs[known], y_test[known]),
        }  # fmt: skip
    if options.picture:
        from posterity import plots

        shown = torch.arange(1, 4) * len(x_test) // 4  # three different streets
        prediction = po.predict(model, run.posterior, x_test[shown], samples=PASSES)
        figure = plots.segmentation(x_test[shown], prediction, y_test[shown], ignore_index=UNLABELLED)
        Path(options.picture).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(options.picture, dpi=110, bbox_inches="tight")


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--epochs", type=int, default=100)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--limit", type=int, help="use only this many images")
    arguments.add_argument("--picture", help="save scenes, labels, predictions and uncertainty here")
    options = arguments.parse_args()
    lines = report.gather(options, runs)
    if options.raw:
        return
    rows = [
        [
            line["name"],
            f"{100 * line['accuracy']:.2f}",
            f"{100 * line['iou']:.2f}",
            f"{line['nll']:.3f}",
            f"{line['auroc']:.3f}",
        ]
        for line in lines
    ]
    facts = {"epochs": lines[0]["epochs"], "training_seconds": f"{lines[0]['seconds']:.0f}", "seed": options.seed}
    text = report.header("CamVid at 160 x 120, small Bayesian SegNet", lines, **facts)
    columns = ["prediction", "pixel accuracy %", "mean IoU %", "NLL", "AUROC of pixel errors by entropy"]
    report.publish("camvid", text + "\n" + report.table(columns, rows), options.out)


if __name__ == "__main__":
    main()
