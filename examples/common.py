"""What the examples share: where a picture goes, how large an experiment is, and digits."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TypeVar

import matplotlib as mpl
import torch
from matplotlib.figure import Figure
from torch import Tensor

mpl.use("Agg")
# Letters that are read from the back of a hall, whatever the width of a picture.
mpl.rcParams.update({"font.size": 13, "axes.titlesize": 14, "legend.fontsize": 12, "figure.titlesize": 17})
T = TypeVar("T")


@cache
def options() -> argparse.Namespace:
    """What the command line asks for."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "docs" / "pictures")
    arguments.add_argument("--small", action="store_true", help="a smaller experiment, to see that it runs")
    return arguments.parse_args()


def size(full: T, small: T) -> T:
    """The size of something: the first, or the second with --small."""
    return small if options().small else full


def headline(figure: Figure, message: str) -> None:
    """The message of a picture as its title, in as few lines as its width allows, none much shorter than another."""
    most = int(7.5 * figure.get_figwidth())
    count = len(textwrap.wrap(message, most))
    width = next(w for w in range(len(message) // count, most + 1) if len(textwrap.wrap(message, w)) == count)
    figure.suptitle(textwrap.fill(message, width), fontsize=mpl.rcParams["figure.titlesize"])


def save(figure: Figure, name: str) -> None:
    """Save a figure as `name`.png in the folder given by --out (by default docs/pictures)."""
    folder = options().out
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png", dpi=110, bbox_inches="tight")
    print(f"saved {name}.png")


def record(name: str, **figures: object) -> None:
    """Save the numbers behind a picture's message as `name`.json beside it; the tests hold the message to them."""
    write(options().out, name, figures)


def write(folder: Path, name: str, figures: Mapping[str, object]) -> None:
    """Save numbers as `name`.json in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def digits(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Scikit-learn's digits in a fixed random order: pixels (1797, 64) in [0, 1], and labels."""
    from sklearn.datasets import load_digits

    pixels, labels = (torch.as_tensor(a) for a in load_digits(return_X_y=True))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    return (pixels / 16).float()[order], labels.long()[order]


def moons(count: int, noise: float = 0.15, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two half-moons that reach into each other: points (count, 2), and labels."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 2
    t = torch.pi * torch.rand(count, generator=generator)
    x = torch.stack((t.cos() + y, (1 - 2 * y) * t.sin() + 0.5 * y), 1)
    return x + noise * torch.randn(count, 2, generator=generator), y
