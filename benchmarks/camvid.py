"""CamVid at 160 x 120: mean IoU of SegNet and U-Net, and how well uncertainty points at wrong pixels.

Network and class weights are chosen by the mean IoU on the validation scenes. The chosen network is trained again from
further seeds, and all ways to predict are compared on the test scenes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import datasets
import report
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

import networks
import posterity as po

CLASSES = (
    "sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist",
)  # fmt: skip
UNLABELLED = len(CLASSES)
PASSES = 40
BATCH = 8
SHOWN = (12, 132, 180)  # a street at dusk, a crossing, a painted wall
# The network, and the power of median-frequency balancing: 1 is the published one, 0 counts every pixel alike.
CANDIDATES = {
    "SegNet, balanced": (networks.SegNet, 1.0),
    "U-Net, balanced": (networks.UNet, 1.0),
    "U-Net, half balanced": (networks.UNet, 0.5),
    "U-Net, plain": (networks.UNet, 0.0),
}


def class_weights(labels: Tensor, power: float) -> Tensor:
    """Median-frequency balancing to a power: rare classes count more."""
    counts = torch.bincount(labels[labels != UNLABELLED], minlength=UNLABELLED).float().clamp_min(1)
    return (counts.median() / counts) ** power


def augmented(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Scenes enlarged by up to a half, shifted and mirrored together with their labels; light and contrast changed."""
    n, device = len(x), x.device
    scale = 1 / (1 + 0.5 * torch.rand(n, device=device))
    shift = (2 * torch.rand(n, 2, device=device) - 1) * (1 - scale)[:, None]
    mirror = torch.where(torch.rand(n, device=device) < 0.5, -1.0, 1.0)
    zero = torch.zeros_like(scale)
    first = torch.stack((scale * mirror, zero, shift[:, 0]), 1)
    second = torch.stack((zero, scale, shift[:, 1]), 1)
    grid = F.affine_grid(torch.stack((first, second), 1), list(x.shape), align_corners=False)
    x = F.grid_sample(x, grid, padding_mode="border", align_corners=False)
    labels = F.grid_sample(y[:, None].float(), grid, mode="nearest", padding_mode="border", align_corners=False)
    contrast, light = 0.6 + 0.8 * torch.rand(2, n, 1, 1, 1, device=device)
    middle = x.mean((1, 2, 3), keepdim=True)
    return (middle * light + contrast * (x - middle)).clamp(0, 1), labels[:, 0].round().long()


def trained(name: str, x: Tensor, y: Tensor, epochs: int, seed: int) -> tuple[nn.Module, po.Posterior]:
    """A network with dropout, trained on augmented scenes."""
    network, power = CANDIDATES[name]
    torch.manual_seed(seed)
    model = network().to(x.device)
    scenes: DataLoader[int] = DataLoader(
        range(len(x)), BATCH, shuffle=True, drop_last=True, collate_fn=lambda index: augmented(x[index], y[index])
    )  # type: ignore[arg-type]
    run = po.fit(
        model, scenes, method="dropout", likelihood="categorical", epochs=epochs, n=len(x), lr=1e-3, schedule="cosine",
        ignore_index=UNLABELLED, class_weights=class_weights(y, power), class_names=CLASSES, seed=seed,
        amp="bf16" if x.is_cuda else None,
    )  # fmt: skip
    return model, run.posterior


class Scored:
    """Predictions of the test scenes, held to their labels."""

    def __init__(self, probs: Tensor, expected: Tensor, labels: Tensor) -> None:
        known = labels != UNLABELLED
        self.probs, self.labels = probs[known], labels[known]
        self.entropy, self.expected = torch.special.entr(self.probs).sum(-1), expected[known]
        self.guess = self.probs.argmax(-1)

    def line(self, first_wrong: Tensor) -> report.Line:
        wrong = self.guess != self.labels
        return {
            "accuracy": 1 - wrong.float().mean().item(),
            "iou": po.metrics.mean_iou(self.guess, self.labels, classes=UNLABELLED),
            "nll": po.metrics.nll(self.probs, self.labels), "ece": po.metrics.ece(self.probs, self.labels),
            "auroc": po.metrics.auroc(self.entropy, wrong),
            "auroc_first": po.metrics.auroc(self.entropy, first_wrong),
            "information_first": po.metrics.auroc(self.entropy - self.expected, first_wrong),
        }  # fmt: skip


def ways(members: list[tuple[nn.Module, po.Posterior]], x: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
    """(name, probabilities, mean entropy of what is averaged) of each way to predict."""

    def asked(member: tuple[nn.Module, po.Posterior], samples: int) -> tuple[Tensor, Tensor]:
        p = po.predict(*member, x, samples=samples, batch_size=16)
        return p.probs.cpu(), (p.entropy - p.mutual_information).cpu()

    for label, samples in (("weight averaging", 0), (f"MC dropout, {PASSES} passes", PASSES)):
        found = [asked(member, samples) for member in members]
        yield label, *found[0]
        if len(found) > 1:
            probs, expected = (torch.stack(parts).mean(0) for parts in zip(*found, strict=True))
            yield f"{len(found)} networks, {label}", probs, expected


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    root = datasets.folder(options.data)
    (x, y), (x_chosen, y_chosen), (x_test, y_test) = (
        [t[: options.limit].to(device) for t in datasets.camvid(root, split)] for split in ("train", "val", "test")
    )
    best, members = (-1.0, ""), []
    for name in options.candidates:
        start = time.perf_counter()
        model, posterior = trained(name, x, y, options.epochs, options.seed)
        seconds = time.perf_counter() - start
        guess = po.predict(model, posterior, x_chosen, samples=0, batch_size=16).probs.argmax(-1)
        iou = po.metrics.mean_iou(guess, y_chosen, classes=UNLABELLED, ignore_index=UNLABELLED)
        yield {"candidate": name, "iou": iou, "seconds": seconds, "epochs": options.epochs, "seed": options.seed}
        if iou > best[0]:
            best, members = (iou, name), [(model, posterior)]
    for seed in range(options.seed + 1, options.seed + options.members):
        members.append(trained(best[1], x, y, options.epochs, seed))
    labels, first = y_test.cpu(), None
    for way, probs, expected in ways(members, x_test):
        scored = Scored(probs, expected, labels)
        first = scored.guess != scored.labels if first is None else first
        yield {"name": way, "epochs": options.epochs, **scored.line(first)}
    if options.picture:
        draw(members[0], x_test, y_test, Path(options.picture))


def draw(member: tuple[nn.Module, po.Posterior], x: Tensor, y: Tensor, path: Path) -> None:
    """Three scenes with the doubt of one network, and how much of what is wrong lies where it doubts most."""
    from posterity import plots

    shown = torch.tensor([i % len(x) for i in SHOWN])
    prediction = po.predict(*member, x, samples=PASSES, batch_size=16)
    known = (y != UNLABELLED).cpu()
    wrong = (prediction.probs.argmax(-1).cpu() != y.cpu())[known]
    doubt = prediction.entropy.cpu()[known]
    fifth = doubt > doubt.quantile(0.8)
    share = wrong[fifth].sum().item() / max(wrong.sum().item(), 1)
    some = po.predict(*member, x[shown], samples=PASSES)
    figure = plots.segmentation(x[shown].cpu(), some, y[shown].cpu(), ignore_index=UNLABELLED)
    figure.suptitle(
        f"The network doubts where it is wrong: the most doubtful fifth of the pixels holds {share:.0%} of the errors"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, bbox_inches="tight")
    figures = {"errors_in_most_doubtful_fifth": share, "error": wrong.float().mean().item(), "classes": list(CLASSES)}
    path.with_suffix(".json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--epochs", type=int, default=150)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--members", type=int, default=3, help="networks of the chosen kind")
    arguments.add_argument("--candidates", nargs="+", default=list(CANDIDATES), choices=list(CANDIDATES))
    arguments.add_argument("--limit", type=int, help="use only this many images of each part")
    arguments.add_argument("--picture", help="save scenes, labels, predictions and uncertainty here")
    options = arguments.parse_args()
    lines = report.gather(options, runs)
    if options.raw:
        return
    candidates = [line for line in lines if "candidate" in line]
    text = report.header(
        "CamVid at 160 x 120, networks with dropout", lines, epochs=lines[0]["epochs"], seed=options.seed
    )
    text += (
        "\nMean IoU of the validation scenes, which chose network and class weights. Balanced: median-frequency\n"
        "weights; half balanced: their square roots.\n\n"
    )
    rows = [[line["candidate"], f"{100 * line['iou']:.2f}", f"{line['seconds']:.0f}"] for line in candidates]
    text += report.table(["network, weights", "mean IoU %, validation", "training seconds"], rows)
    text += (
        "\nThe chosen one on the test scenes. The last two columns ask every way about the errors of the first\n"
        "row: AUROC by entropy, and by mutual information.\n\n"
    )
    columns = [
        "prediction", "pixel accuracy %", "mean IoU %", "NLL", "ECE", "AUROC of own errors",
        "of the first row's", "by mutual information",
    ]  # fmt: skip
    rows = [
        [
            line["name"], f"{100 * line['accuracy']:.2f}", f"{100 * line['iou']:.2f}", f"{line['nll']:.3f}",
            f"{line['ece']:.3f}", f"{line['auroc']:.3f}", f"{line['auroc_first']:.3f}",
            "" if abs(line["information_first"] - 0.5) < 1e-9 else f"{line['information_first']:.3f}",
        ]
        for line in lines if "name" in line
    ]  # fmt: skip
    report.publish("camvid", text + report.table(columns, rows), options.out)


if __name__ == "__main__":
    main()
