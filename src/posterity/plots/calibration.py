"""Pictures of trust: is a confidence true, does uncertainty find errors, does it notice foreign inputs?"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np
import torch

from posterity import metrics
from posterity.batches import Array
from posterity.plots.style import (
    BLUE,
    COLOURS,
    INK,
    MUTED,
    ORANGE,
    VERMILION,
    named,
    numpy,
    panels,
    plain,
    styled,
)

_Z = 1.6449  # of a normal: 90 % lie within

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@styled
def reliability(probs: Array | Mapping[str, Array], labels: Array, *, bins: int = 15) -> Figure:
    """Accuracy against confidence: honest confidences lie on the diagonal; below it the model is too sure of itself.

    Args:
        probs: Probabilities (..., K), or several models' by name, one panel each.
        labels: Integers (...).
        bins: Bins of equal width.

    Returns:
        A figure with Wilson's 90 % interval of each bin's accuracy; under each panel, where the confidences lie.
    """
    models = named(probs, "")
    figure, axes = panels(2, len(models), height=2.6, sharex=True, sharey="row", height_ratios=(3, 1))
    for (name, values), (curve, shares) in zip(models.items(), axes.T, strict=True):
        count = torch.as_tensor(labels).numel()
        _reliability(curve, shares, metrics.calibration_bins(values, labels, bins=bins), bins, count)
        curve.set_title(plain(name) or "Reliability")
    axes[0, 0].set_ylabel("accuracy")
    axes[1, 0].set_ylabel("share")
    return figure


def _reliability(curve: Axes, shares: Axes, found: metrics.CalibrationBins, bins: int, count: int) -> None:
    confidence, accuracy, weight = (numpy(column) for column in found)
    curve.plot([0, 1], [0, 1], color=MUTED, linestyle="--", linewidth=1)
    curve.vlines(confidence, confidence, accuracy, color=VERMILION, linewidth=5, alpha=0.45, label="gap")
    curve.plot(confidence, accuracy, "o-", color=BLUE, markersize=5, label="model")
    if count:
        n = weight * count
        middle, spread = accuracy + _Z**2 / (2 * n), np.sqrt(accuracy * (1 - accuracy) / n + _Z**2 / (4 * n**2))
        ends = [(middle + side * _Z * spread) / (1 + _Z**2 / n) for side in (-1, 1)]
        curve.vlines(confidence, *ends, color=INK, linewidth=1)
    curve.text(0.04, 0.95, f"ECE {found.error:.3f}\n({bins} bins)", transform=curve.transAxes, va="top")
    curve.set(xlim=(0, 1), ylim=(0, 1.02), aspect="auto")
    curve.grid(True)
    left = np.minimum(np.floor(confidence * bins), bins - 1) / bins
    shares.bar(left, weight, width=1 / bins, align="edge", color=BLUE, edgecolor="white")
    shares.set(xlabel="confidence")


@styled
def interval_coverage(mean: Array, std: Array, targets: Array) -> Figure:
    """The share of targets inside central intervals against the share they promise: honest ones lie on the diagonal.

    Args:
        mean: Expected targets.
        std: Their standard deviations, noise included; intervals are those of Gaussians.
        targets: Numbers, in the same shape.

    Returns:
        A figure; below the diagonal the model is too sure of itself.
    """
    promised = torch.linspace(0.02, 0.98, 49, dtype=torch.float64)
    reach = 2**0.5 * torch.erfinv(promised)
    middle, width = (torch.as_tensor(numpy(values)) for values in (mean, std))
    held = [metrics.coverage(middle - r * width, middle + r * width, targets) for r in reach]
    figure, ((axes,),) = panels(width=4.6, height=4.2)
    axes.plot([0, 1], [0, 1], color=MUTED, linestyle="--", linewidth=1)
    axes.plot(promised, held, color=BLUE)
    axes.set(xlabel="promised by the interval", ylabel="targets inside", xlim=(0, 1), ylim=(0, 1.02))
    axes.set_title("Coverage of intervals")
    axes.grid(True)
    return figure


@styled
def risk_coverage(curves: Mapping[str, tuple[Array, Array]]) -> Figure:
    """The error among the examples that are kept when the model abstains from the least certain ones.

    Args:
        curves: For each name, the uncertainty and the loss (0/1 errors, say) of every example.

    Returns:
        A figure; the number in the legend is the area under the curve.
    """
    figure, ((axes,),) = panels(width=6.0, height=4.2)
    for colour, (name, (uncertainty, losses)) in zip(cycle(COLOURS), curves.items(), strict=False):
        coverage, risk = metrics.risk_coverage(uncertainty, losses)
        area = metrics.aurc(uncertainty, losses)
        axes.plot(
            100 * numpy(coverage),
            numpy(risk),
            color=colour,
            label=f"{plain(name)} (AURC {area:,.{0 if area >= 1000 else 4}f})",
        )
        axes.plot(100, risk[-1], "o", color=colour, clip_on=False)
    axes.set(xlabel="kept, most certain first (%)", ylabel="mean loss of what is kept", xlim=(0, 100), ylim=(0, None))
    axes.set_title("Risk and coverage")
    axes.grid(True)
    axes.legend()
    return figure


@styled
def entropy_in_out(inside: Array, outside: Array | Mapping[str, Array], *, bins: int = 40) -> Figure:
    """Predictive entropy on inputs like the training data and on foreign ones: the less overlap, the better.

    Args:
        inside: Entropy of in-distribution inputs.
        outside: Entropy of foreign inputs, one set or several by name.
        bins: Bins of the histograms.

    Returns:
        A figure; the numbers in the legend are the AUROCs of telling the two apart.
    """
    known, foreign = numpy(inside).ravel(), named(outside, "foreign")
    largest = max(known.max(), *(numpy(values).max() for values in foreign.values()), 1e-9)
    edges = np.linspace(0, largest, bins + 1)
    figure, ((axes,),) = panels(width=6.4, height=3.8)
    axes.hist(known, edges, density=True, color=BLUE, alpha=0.35, label="in distribution")
    axes.hist(known, edges, density=True, color=BLUE, histtype="step", linewidth=1.8)
    for colour, (name, values) in zip(cycle((ORANGE, *COLOURS[2:])), foreign.items(), strict=False):
        label = f"{plain(name)} (AUROC {metrics.ood_auroc(inside, values):.3f})"
        axes.hist(numpy(values).ravel(), edges, density=True, color=colour, alpha=0.25, label=label)
        axes.hist(numpy(values).ravel(), edges, density=True, color=colour, histtype="step", linewidth=1.8)
    axes.set(xlabel="predictive entropy (nats)", ylabel="density", xlim=(0, largest), yticks=[])
    axes.set_title("Entropy in and out of distribution", color=INK)
    axes.legend()
    return figure
