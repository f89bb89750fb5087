"""Pictures of the effects of a table's columns on predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from posterity.errors import require
from posterity.plots.style import COLOURS, INK, panels, plain, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CLASSES = 4  # curves of a panel
_LONGEST = 14  # letters of a level's name


@styled
def effects(found: Sequence[Any]) -> Figure:
    """The average prediction as one column changes, a panel for each column, with 90 % bands over draws.

    Args:
        found: Effects, as `posterity.runs.effects.effects` computes them.

    Returns:
        A figure.
    """
    require(len(found) > 0, "effects", "at least one", "none")
    across = min(3, len(found))
    figure, axes = panels(-(-len(found) // across), across, width=3.3, height=2.7, sharey=True)
    for place, effect in zip(axes.flat, found):
        shown = _shown(effect)
        x = np.array(effect.values, dtype=float) if effect.numeric and not isinstance(effect.values[0], str) else None
        for colour, k in zip(COLOURS, shown):
            mean, low, high = (part[:, k] for part in (effect.mean, effect.lower, effect.upper))
            name = plain(effect.outputs[k]) if len(shown) > 1 or len(effect.outputs) > 1 else None
            at = np.arange(len(mean)) if x is None else x
            if effect.numeric:
                place.plot(at, mean, color=colour, label=name)
                place.fill_between(at, low, high, color=colour, alpha=0.2, linewidth=0)
            else:
                place.errorbar(at, mean, [mean - low, high - mean], fmt="o", color=colour, capsize=3, label=name)
        if x is None:
            labels = [plain(str(value)[:_LONGEST]) for value in effect.values]
            kept = range(0, len(labels), max(1, len(labels) // 4)) if effect.numeric else range(len(labels))
            place.set_xticks(list(kept), [labels[i] for i in kept], rotation=30, ha="right", fontsize=8)
        place.set_title(plain(effect.column), fontsize=10, color=INK)
        place.grid(True, axis="y")
    for place in list(axes.flat)[len(found) :]:
        place.set_visible(False)
    first = found[0]
    axes[0, 0].set_ylabel("probability" if len(first.outputs) > 1 else plain(first.outputs[0]))
    if len(first.outputs) > 1:
        axes[0, 0].legend(fontsize=8)
    return figure


def _shown(effect: Any) -> list[int]:
    """Which outputs: one of two classes, or of many those that change most."""
    count = len(effect.outputs)
    if count <= 2:
        return [count - 1]
    return sorted(np.argsort(-np.ptp(effect.mean, axis=0))[:_CLASSES].tolist())
