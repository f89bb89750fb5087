"""What the examples share: where a picture goes."""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

mpl.use("Agg")


def save(figure: Figure, name: str) -> None:
    """Save a figure as `name`.png in the folder given by --out (docs/pictures unless said)."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "docs" / "pictures")
    folder = arguments.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png", dpi=110, bbox_inches="tight")
    print(f"saved {name}.png")
