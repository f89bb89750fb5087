"""Pictures of memory: every training example by what it decides and how wrong the model is about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posterity.batches import Array
from posterity.errors import require
from posterity.memory import MemoryMap
from posterity.plots.style import BLUE, MUTED, ORANGE, PURPLE, VERMILION, empty, numpy, panels, plain, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LONG = 14  # letters of two names that fit beside each other above an image
_COLOURS = {
    "regular": BLUE,
    "uncertain": ORANGE,
    "unpredictable": VERMILION,
    "unpredictable and uncertain": PURPLE,
}


@styled
def memory_map(m: MemoryMap, *, label: int = 0, log: bool = True) -> Figure:
    """Prediction error against leverage, with the guides that part the categories.

    Args:
        m: A memory map.
        label: How many examples to label with their ids, the likeliest wrong labels first.
        log: Logarithmic leverage; a few examples decide much more than the others.

    Returns:
        A figure with one dot for each example.
    """
    table = m.table
    figure, axes = panels(width=6.4, height=4.8)
    axis = axes[0, 0]
    for category, colour in _COLOURS.items():
        mine = table[table["category"] == category]
        if len(mine):
            dots = {"s": 12, "color": colour, "alpha": 0.6, "linewidths": 0, "rasterized": len(table) > 5000}
            axis.scatter(mine["leverage"], mine["error"], label=f"{category} ({len(mine)})", **dots)
    x, y = m.limits
    axis.axvline(x, color=MUTED, lw=1, ls="--")
    axis.axhline(y, color=MUTED, lw=1, ls="--")
    if log and (table["leverage"] > 0).all():
        axis.set_xscale("log")
    if label > 0:
        for _, row in m.top(label).iterrows():
            place = (row["leverage"], row["error"])
            axis.annotate(str(row["id"]), place, xytext=(4, 2), textcoords="offset points", fontsize=8)
    axis.set_xlabel("leverage: how much the example decides about itself")
    axis.set_ylabel("prediction error ‖p − y‖")
    figure.legend(loc="outside lower center", ncols=2)
    return figure


@styled
def examples(m: MemoryMap, images: Array, *, by: str | None = None, count: int = 20, smallest: bool = False) -> Figure:
    """The images with the largest (or smallest) values in a column of a memory map.

    Args:
        m: A memory map of images whose ids are their positions.
        images: All of them, (N, height, width) or (N, channels, height, width).
        by: The column; by default the one that ranks wrong labels.
        count: How many.
        smallest: The smallest values instead.

    Returns:
        A figure with one panel for each image: its id, its label and the model's prediction without it
        (the first of them, where there are several outputs).
    """
    chosen = m.top(count, by=by, ascending=smallest)
    ids = chosen["id"].tolist()
    require(max(ids) < len(images) and min(ids) >= 0, "ids", f"positions among {len(images)} images", max(ids))
    first = "" if "label" in chosen else "_0"  # of several outputs
    columns = min(10, len(chosen))
    figure, axes = panels(-(-len(chosen) // columns), columns, width=1.3, height=1.7)
    for axis in axes.flat:
        empty(axis)
    for axis, (_, row) in zip(axes.flat, chosen.iterrows()):
        picture = numpy(images[int(row["id"])])
        if picture.ndim == 3:
            picture = picture.transpose(1, 2, 0).squeeze()
        low, high = picture.min(), picture.max()
        axis.imshow((picture - low) / max(high - low, 1e-12), cmap="gray_r")
        given, said = (_said(m, row[f"{column}{first}"]) for column in ("label", "loo_prediction"))
        between = " " if len(given) + len(said) < LONG else "\n"  # names that a neighbour's would cover
        axis.set_title(f"{row['id']}\n{given} →{between}{said}", fontsize=9, loc="center", fontweight="normal")
    return figure


def _said(m: MemoryMap, value: float) -> str:
    """A label or a prediction of one output: the name of a class, or a number."""
    law, names = m.posterior.likelihood, m.posterior.class_names
    if not law.is_classification:
        return f"{value:.3g}"
    k = int(value) if law.has_class_axis else int(value > 0.5)
    return plain(names[k]) if names else str(k)
