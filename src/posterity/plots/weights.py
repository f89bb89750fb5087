"""Pictures of weights: a Bayesian network beside a point estimate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from posterity.errors import expected, require, require_whole
from posterity.plots.style import BLUE, MUTED, ORANGE, SIGNED, UNCERTAINTY, empty, numpy, panels, styled
from posterity.posterior import Posterior

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@styled
def weight_distributions(
    posterior: Posterior,
    point: Mapping[str, Tensor] | None = None,
    *,
    names: Sequence[str] | None = None,
    draws: int = 20,
    bins: int = 60,
) -> Figure:
    """How the weights of each layer are distributed: in a point estimate, and in networks drawn from the posterior.

    Args:
        posterior: A posterior over the weights.
        point: The weights of a point estimate (`dict(model.named_parameters())`), on the left; without it the left
            column shows the posterior's mean.
        names: Parameters to show; unless given, all with two or more axes.
        draws: Networks to draw.
        bins: Bins of the histograms.

    Returns:
        A figure with a row for each parameter.
    """
    weights = (
        {name: t for name, t in posterior.mean.items() if t.ndim > 1} if names is None else _chosen(posterior, names)
    )
    require(len(weights) > 0, "names", "at least one parameter with two axes", list(posterior.names))
    require_whole("draws", draws)
    sampled = [posterior.sample(k) for k in range(draws)]
    left = "posterior mean" if point is None else "point estimate"
    figure, axes = panels(len(weights), 2, width=4.6, height=2.2, sharex="row", sharey="row")
    for row, (name, mean) in zip(axes, weights.items(), strict=True):
        single = numpy(mean if point is None else point[name]).ravel()
        many = np.concatenate([numpy(draw[name]).ravel() for draw in sampled])
        reach = np.quantile(np.abs(np.concatenate((single, many))), 0.999)
        edges = np.linspace(-reach, reach, bins + 1)
        row[0].hist(single, edges, density=True, color=ORANGE)
        row[1].hist(many, edges, density=True, color=BLUE)
        deviation = numpy(posterior.variance[name]).mean() ** 0.5
        row[1].text(0.97, 0.92, f"posterior std {deviation:.2g}", transform=row[1].transAxes, ha="right", va="top")
        row[0].set_ylabel(f"{name}\n{tuple(mean.shape)}")
        for axis in row:
            axis.axvline(0, color=MUTED, linewidth=0.8)
            axis.set_yticks([])
            axis.locator_params(axis="x", nbins=5)
    axes[0, 0].set_title(left.capitalize())
    axes[0, 1].set_title("Bayesian")
    for axis in axes[-1]:
        axis.set_xlabel("weight")
    return figure


@styled
def filter_distributions(
    posterior: Posterior, name: str, point: Mapping[str, Tensor] | None = None, *, count: int = 12
) -> Figure:
    """The filters of a convolution: of a point estimate, of the posterior's mean, and how sure the posterior is.

    Args:
        posterior: A posterior over the weights.
        name: A convolution's weight (out, in, height, width); with several input channels their mean is shown.
        point: The weights of a point estimate, in the first row.
        count: Filters to show, those with the largest norm in the posterior's mean.

    Returns:
        A figure with a column for each filter.
    """
    mean = _chosen(posterior, [name])[name]
    require(mean.ndim == 4, name, "a convolution's weight with four axes", tuple(mean.shape))
    chosen = mean.flatten(1).norm(dim=1).argsort(descending=True)[:count].cpu()
    rows: list[tuple[str, Tensor, str]] = [
        ("Bayesian\nmean", mean, SIGNED),
        ("Bayesian\nstd", posterior.variance[name].sqrt(), UNCERTAINTY),
    ]
    if point is not None:
        rows.insert(0, ("point\nestimate", point[name], SIGNED))
    largest = max(np.abs(numpy(t[chosen].mean(1))).max() for _, t, colours in rows if colours == SIGNED)
    figure, axes = panels(len(rows), len(chosen), width=0.85, height=1.0)
    for row, (label, values, colours) in zip(axes, rows, strict=True):
        images = numpy(values[chosen].mean(1))
        low, high = (-largest, largest) if colours == SIGNED else (0, np.abs(images).max())
        for axis, image in zip(row, images, strict=True):
            shown = axis.imshow(image, cmap=colours, vmin=low, vmax=high)
            empty(axis)
        row[0].set_ylabel(label, rotation=0, ha="right", va="center")
        figure.colorbar(shown, ax=list(row), fraction=0.02, pad=0.01, ticks=[low, high], format="%.2g")
    return figure


def _chosen(posterior: Posterior, names: Sequence[str]) -> dict[str, Tensor]:
    for name in names:
        if name not in posterior.mean:
            raise expected("names", f"parameters among {sorted(posterior.names)}", name)
    return {name: posterior.mean[name] for name in names}
