"""Segmentation with uncertainty: shapes on noise, and a shape that the network has never seen."""

from __future__ import annotations

import torch
from common import headline, record, save, size
from torch import Tensor, nn

import posterity as po
from posterity.metrics import auroc
from posterity.prediction import Prediction

SIDE = 32
CLASSES = ("background", "disc", "square")


def scene(generator: torch.Generator, stranger: bool = False) -> tuple[Tensor, Tensor]:
    """An image with a disc and a square at random places, noise over it, and its map of classes."""
    rows, columns = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    image, classes = torch.zeros(SIDE, SIDE), torch.zeros(SIDE, SIDE, dtype=torch.long)
    sides = (0, 1) if torch.rand(1, generator=generator) < 0.5 else (1, 0)
    for label, side in zip((1, 2), sides, strict=True):  # a half of the image each
        r, c, t = torch.rand(3, generator=generator).tolist()
        radius = 3.5 + 2.5 * t
        down, right = rows - (7 + 18 * r), columns - (7 + 2 * c + 16 * side)
        inside = down**2 + right**2 < radius**2 if label == 1 else torch.maximum(down.abs(), right.abs()) < radius
        image[inside], classes[inside] = 1.0, label
    if stranger:  # a cross instead
        down, right = (rows - 16).abs(), (columns - 16).abs()
        cross = ((down < 3) & (right < 13)) | ((right < 3) & (down < 13))
        image, classes = torch.where(cross, 1.0, 0.0), torch.where(cross, -1, 0)
    return image + 0.25 * torch.randn(SIDE, SIDE, generator=generator), classes


def scenes(count: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images, classes = zip(*(scene(generator) for _ in range(count)), strict=True)
    return torch.stack(images).unsqueeze(1), torch.stack(classes)


class Network(nn.Module):
    """Looks far on a coarse grid, and close by on the fine one; dropout in between."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.near = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU())
        layers: list[nn.Module] = [nn.MaxPool2d(4), nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU()]
        for _ in range(2):
            layers += [nn.Dropout2d(0.2), nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.ReLU()]
        self.far = nn.Sequential(*layers, nn.Upsample(scale_factor=4, mode="bilinear"))
        self.both = nn.Sequential(
            nn.Conv2d(3 * width, 2 * width, 3, padding=1), nn.ReLU(), nn.Dropout2d(0.2), nn.Conv2d(2 * width, 3, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of every pixel."""
        near = self.near(x)
        return self.both(torch.cat((near, self.far(near)), 1))


def doubt(prediction: Prediction, shape: Tensor) -> Tensor:
    """The mean entropy of the pixels of a shape, for each image."""
    return (prediction.entropy * shape).sum((1, 2)) / shape.sum((1, 2))


def median(values: Tensor) -> int:
    return int(values.argsort()[len(values) // 2])


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    train, samples = scenes(size(300, 8), seed=0), size(50, 3)
    run = po.fit(Network(), train, method="dropout", lr=5e-3, epochs=size(25, 1), batch_size=15, class_names=CLASSES)
    images, classes = scenes(size(200, 4), seed=3)
    judged = po.predict(run.model, run.posterior, images, samples=samples)
    wrong = judged.probs.argmax(-1) != classes
    order = judged.entropy.flatten().argsort(descending=True)
    share = (wrong.flatten()[order[: len(order) // 20]].sum() / wrong.sum()).item()
    shapes = [scene(torch.Generator().manual_seed(10 + i), stranger=True) for i in range(size(50, 2))]
    crosses, places = (torch.stack(part) for part in zip(*shapes, strict=True))
    crosses = crosses.unsqueeze(1)
    strange = po.predict(run.model, run.posterior, crosses, samples=samples)
    known, unknown = doubt(judged, classes > 0), doubt(strange, places == -1)
    ratio = (unknown.mean() / known.mean()).item()
    found = auroc(torch.cat((known, unknown)), torch.arange(len(known) + len(unknown)) >= len(known))

    typical, worst, cross = median(known), int(wrong.sum((1, 2)).argmax()), median(unknown)
    images = torch.stack((images[typical], images[worst], crosses[cross]))
    classes = torch.stack((classes[typical], classes[worst], places[cross]))
    shown = po.predict(run.model, run.posterior, images, samples=samples)
    figure = po.plots.segmentation(images, shown, classes, ignore_index=-1)
    rows = (
        f"median uncertainty\nof {len(known)} scenes",
        f"most errors\nof {len(known)} scenes",
        "never seen:\na cross",
    )
    for axis, name in zip(figure.axes[:: len(figure.axes) // 3], rows):
        axis.set_ylabel(name, fontsize=13)
    headline(
        figure,
        f"Uncertainty finds errors: the most uncertain twentieth of the pixels contains {share:.0%} of them. A cross, "
        f"never seen in training, is {ratio:.1f} times as uncertain as known shapes",
    )
    record(
        "segmentation", errors_in_most_doubtful_twentieth=share, doubt_of_crosses_over_known_shapes=ratio,
        auroc_of_crosses=found,
    )  # fmt: skip
    save(figure, "segmentation")


if __name__ == "__main__":
    main()
