"""Pictures of merging: what each task gains or loses as the weights move."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING

from posterity.merging import Sweep
from posterity.plots.style import COLOURS, panels, plain, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@styled
def trade_off(sweep: Sweep, ylabel: str = "loss") -> Figure:
    """The scores of every task over the weight of each model; two models share one line, others get a panel each.

    Args:
        sweep: What `posterity.merging.sweep` found.
        ylabel: What the scores are.
    """
    models = list(sweep.weights[0])
    shown = models if len(models) > 2 else models[:1]
    per_panel = len(sweep.weights) // len(shown)
    figure, axes = panels(1, len(shown), sharey=True)
    for i, name in enumerate(shown):
        part = slice(i * per_panel, (i + 1) * per_panel)
        x = [weights[name] for weights in sweep.weights[part]]
        for task, colour in zip(sweep.tasks, cycle(COLOURS), strict=False):
            axes[0, i].plot(x, [scores[task] for scores in sweep.scores[part]], "o-", color=colour, label=plain(task))
        axes[0, i].set_xlabel(f"weight of {plain(name)}")
    axes[0, 0].set_ylabel(ylabel)
    axes[0, -1].legend()
    return figure
