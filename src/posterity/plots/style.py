"""One look for all pictures: colours that colour-blind readers can tell apart, readable letters, no clutter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np
import torch

from posterity.batches import Array
from posterity.errors import MissingExtra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")

# Okabe and Ito's colours, in the order in which they are used.
BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, YELLOW = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442",
)  # fmt: skip
INK, MUTED, PAPER = "#222222", "#8A8A8A", "#FFFFFF"
COLOURS = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, YELLOW)
UNCERTAINTY = "viridis"  # ordered in lightness, so it survives greyscale
SIGNED = "RdBu"  # red and blue around white: no red against green

_SETTINGS: Any = {
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": False,
    "grid.color": "#E3E3E3",
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "legend.frameon": False,
    "lines.linewidth": 2.0,
    "figure.dpi": 110,
    "savefig.dpi": 150,
    "image.interpolation": "nearest",
}


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """A drawing function in the package's style; raises with the command to install matplotlib if it is missing."""

    @wraps(draw)
    def drawn(*args: P.args, **named: P.kwargs) -> Figure:
        try:
            from matplotlib import rc_context
        except ImportError as reason:
            raise MissingExtra("plots: needs matplotlib; install it with pip install 'posterity[plots]'") from reason
        with rc_context(_SETTINGS):
            return draw(*args, **named)

    return drawn


def panels(rows: int = 1, columns: int = 1, *, width: float = 4.6, height: float = 3.8, **sharing: Any) -> Any:
    """A figure outside of pyplot's global state, and its axes (rows, columns)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **sharing)


def empty(axes: Axes, title: str = "") -> None:
    """An axis for an image: no ticks, no frame."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    axes.set_title(title)


def numpy(array: Array) -> np.ndarray[Any, Any]:
    """A tensor or an array as an array in float64 (integers stay integers)."""
    values = torch.as_tensor(array).detach().cpu()
    return (values.double() if values.is_floating_point() else values).numpy()


def named(given: Any, default: str) -> dict[str, Any]:
    """Something alone as a mapping with one name."""
    return dict(given) if isinstance(given, Mapping) else {default: given}


def plain(name: object) -> str:
    r"""A name, escaped where matplotlib would read mathematics between dollars or hide a leading "_".

    Examples:
        >>> plain("5 $ or 10 $"), plain("_background_")
        ('5 \\$ or 10 \\$', ' _background_')
    """
    text = str(name).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text
