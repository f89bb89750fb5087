"""Pictures of segmentation: inputs, predictions, and where the model is uncertain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from posterity.batches import Array
from posterity.errors import require
from posterity.plots.style import COLOURS, MUTED, UNCERTAINTY, empty, numpy, panels, plain, styled
from posterity.prediction import Prediction

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@styled
def segmentation(
    images: Array,
    prediction: Prediction,
    labels: Array | None = None,
    *,
    ignore_index: int | None = None,
    count: int = 3,
) -> Figure:
    """Images, true and predicted classes, total uncertainty (entropy) and the part that more data would remove.

    Args:
        images: Inputs (N, channels, height, width) with one or three channels; each is stretched to full contrast.
        prediction: Their prediction, with probabilities (N, height, width, K).
        labels: True classes (N, height, width).
        ignore_index: A label that means "void", drawn in grey.
        count: How many of the images to show.

    Returns:
        A figure with a row for each image.
    """
    probs = prediction.probs
    require(probs.ndim == 4, "prediction", "probabilities (N, height, width, K)", tuple(probs.shape))
    pixels, guess = numpy(images[:count]), numpy(probs[:count].argmax(-1))
    columns: list[tuple[str, Any, str | None]] = [("Image", [_picture(p) for p in pixels], None)]
    if labels is not None:
        columns.append(("Truth", _coloured(numpy(labels[:count]), ignore_index), None))
    columns.append(("Prediction", _coloured(guess, None), None))
    columns.append(("Entropy", numpy(prediction.entropy[:count]), UNCERTAINTY))
    columns.append(("Mutual information", numpy(prediction.mutual_information[:count]), UNCERTAINTY))
    height, width = guess.shape[1:]
    figure, axes = panels(len(guess), len(columns), width=3.0, height=3.0 * height / width + 0.3)
    for column, (title, pictures, colours) in zip(axes.T, columns, strict=True):
        largest = None if colours is None else max(float(np.max(pictures)), 1e-9)
        for axis, picture in zip(column, pictures, strict=True):
            shown = axis.imshow(picture, cmap=colours, vmin=0 if colours else None, vmax=largest)
            empty(axis)
        column[0].set_title(title)
        if colours is not None:
            figure.colorbar(shown, ax=list(column), label="nats", location="bottom", fraction=0.06, aspect=25)
    _legend(figure, guess if labels is None else np.union1d(guess, numpy(labels[:count])), prediction, ignore_index)
    return figure


def _picture(pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    stretched = (pixels - pixels.min()) / max(float(np.ptp(pixels)), 1e-12)
    return np.broadcast_to(stretched.transpose(1, 2, 0), (*pixels.shape[1:], 3))


def _coloured(classes: np.ndarray[Any, Any], ignore_index: int | None) -> np.ndarray[Any, Any]:
    from matplotlib.colors import to_rgb

    colours = np.array([to_rgb(colour) for colour in _palette(int(classes.max()) + 1)])
    void = classes == ignore_index if ignore_index is not None else np.zeros_like(classes, dtype=bool)
    return np.where(void[..., None], to_rgb(MUTED), colours[np.where(void, 0, classes)])


def _palette(classes: int) -> list[Any]:
    """The package's colours first; past them, evenly spaced hues in alternating lightness."""
    from matplotlib.colors import hsv_to_rgb

    further = [hsv_to_rgb((0.61803 * k % 1, 0.45 + 0.4 * (k % 2), 0.55 + 0.35 * (k % 3 > 0))) for k in range(classes)]
    return [*COLOURS, *further][:classes]


def _legend(figure: Figure, classes: np.ndarray[Any, Any], prediction: Prediction, ignore_index: int | None) -> None:
    from matplotlib.patches import Patch

    names = prediction.class_names
    there = [int(k) for k in np.unique(classes) if k != ignore_index]
    palette = _palette(max(there) + 1)
    patches = [Patch(color=palette[k], label=plain(names[k]) if names else f"class {k}") for k in there]
    if ignore_index is not None and ignore_index in classes:
        patches.append(Patch(color=MUTED, label="not labelled"))
    figure.legend(handles=patches, loc="outside lower center", ncols=min(6, len(patches)))
