"""Pictures of predictions over their inputs: bands over a line, maps over a plane."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from posterity.batches import Array
from posterity.errors import expected, require
from posterity.plots.style import (
    BLUE,
    COLOURS,
    INK,
    MUTED,
    PAPER,
    SKY,
    UNCERTAINTY,
    VERMILION,
    numpy,
    panels,
    styled,
)
from posterity.prediction import Prediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Data = tuple[Array, Array]


@styled
def band_1d(
    x: Array, prediction: Prediction, data: Data | None = None, *, deviations: float = 2.0, draws: int = 0
) -> Figure:
    """A regression over a line: the mean, how far the model itself is unsure, and the noise around that.

    Args:
        x: Inputs (N,) or (N, 1), in any order.
        prediction: The prediction at these inputs, with one output.
        data: Training inputs and targets, drawn as points.
        deviations: Half-width of the bands in standard deviations.
        draws: How many single draws to show as thin lines (as far as the prediction kept them).

    Returns:
        A figure.
    """
    line, mean = numpy(x).ravel(), numpy(prediction.mean).reshape(len(prediction), -1)
    require(mean.shape[1] == 1, "prediction", "one output", mean.shape[1])
    require(len(line) == len(mean), "x", f"{len(mean)} inputs like the prediction", len(line))
    order = np.argsort(line)
    line, middle = line[order], mean[order, 0]
    figure, ((axes,),) = panels(width=7.0, height=4.2)
    inner, outer = (deviations * numpy(s).ravel()[order] for s in (prediction.epistemic_std, prediction.std))
    width = f"±{deviations:g} std"
    axes.fill_between(line, middle - inner, middle + inner, color=SKY, alpha=0.45, label=f"model uncertainty, {width}")
    axes.plot(line, middle + outer, color=BLUE, linestyle="--", linewidth=1.0, label=f"with noise, {width}")
    axes.plot(line, middle - outer, color=BLUE, linestyle="--", linewidth=1.0)
    if draws and prediction.outputs is not None:
        singles = numpy(prediction.likelihood.mean(prediction.outputs[:draws])).reshape(-1, len(line))
        axes.plot(line, singles[:, order].T, color=INK, linewidth=0.7, alpha=0.5)
    axes.plot(line, middle, color=BLUE, label="mean")
    if data is not None:
        axes.plot(numpy(data[0]).ravel(), numpy(data[1]).ravel(), "o", color=VERMILION, markersize=4, label="data")
    axes.set(xlabel="x", ylabel="y", **({"xlim": (line[0], line[-1])} if line[-1] > line[0] else {}))
    axes.legend(loc="best")
    return figure


@styled
def predictive_map_2d(
    ask: Callable[[Tensor], Prediction], data: Data, *, margin: float = 0.5, resolution: int = 120
) -> Figure:
    """A classifier over a plane: its predictions and their uncertainty.

    Args:
        ask: From inputs (N, 2) to their prediction: `lambda x: predict(model, posterior, x)`.
        data: Training inputs (N, 2) and labels, drawn as points.
        margin: How far to look beyond the data, as a fraction of their extent.
        resolution: Points a side.

    Returns:
        A figure with the probability of the predicted class on the left (its colour fades towards a guess) and the
        mutual information on the right: high where further data would help.
    """
    points, labels = numpy(data[0]), numpy(data[1]).ravel()
    require(points.ndim == 2 and points.shape[1] == 2, "data", "inputs of shape (N, 2)", points.shape)
    low, high = points.min(0), points.max(0)
    reach = margin * np.where(high > low, high - low, 1.0)  # points on one line get room on both sides
    low, high = low - reach, high + reach
    sides = [np.linspace(a, b, resolution) for a, b in zip(low, high, strict=True)]
    grid = np.stack(np.meshgrid(*sides), -1).reshape(-1, 2)
    like = data[0] if isinstance(data[0], Tensor) else torch.get_default_dtype()
    inputs = torch.as_tensor(grid).to(like)
    answer = ask(inputs)
    shape, extent = (resolution, resolution), (low[0], high[0], low[1], high[1])
    figure, ((left, right),) = panels(1, 2, width=5.0, height=4.2, sharex=True, sharey=True)
    probs = _classes(answer)
    _draw_classes(left, probs.reshape(*shape, -1), sides, extent)
    information = numpy(answer.mutual_information).reshape(shape)
    image = right.imshow(information, origin="lower", extent=extent, aspect="auto", cmap=UNCERTAINTY, vmin=0)
    right.set_title("Mutual information")
    figure.colorbar(image, ax=right, label="nats")
    for axes in (left, right):
        for k in np.unique(labels):
            colour = COLOURS[int(k) % len(COLOURS)]
            axes.scatter(*points[labels == k].T, s=18, color=colour, edgecolor=PAPER, linewidth=0.6)
        axes.set(xlim=extent[:2], ylim=extent[2:], xlabel="x₁")
    left.set_ylabel("x₂")
    return figure


def _classes(answer: Prediction) -> np.ndarray[Any, Any]:
    """Class probabilities (N, K); two columns for one binary output."""
    if answer.log_probs is None:
        raise expected("ask", "the prediction of a classifier", answer)
    return numpy(answer.log_probs.exp()).reshape(len(answer), -1)


def _draw_classes(axes: Axes, probs: np.ndarray[Any, Any], sides: list[Any], extent: Any) -> None:
    from matplotlib.colors import to_rgb

    classes = probs.shape[-1]
    best, guess = probs.max(-1), probs.argmax(-1)
    palette = np.array([to_rgb(COLOURS[k % len(COLOURS)]) for k in range(classes)])
    strength = ((best - 1 / classes) / (1 - 1 / classes))[..., None]
    axes.imshow(1 - 0.75 * strength * (1 - palette[guess]), origin="lower", extent=extent, aspect="auto")
    if classes == 2:
        levels = [0.1, 0.3, 0.5, 0.7, 0.9]
        lines = axes.contour(*sides, probs[..., 1], levels, colors=INK, linewidths=[0.8, 0.8, 2.0, 0.8, 0.8])
        axes.clabel(lines, fontsize=8)
    else:
        axes.contour(*sides, best, [0.5, 0.7, 0.9], colors=MUTED, linewidths=0.8)
    axes.set_title("Predicted class")
