"""Table 1: every algorithm of the rule beside an independent implementation, run live."""

from __future__ import annotations

import torch
from common import headline, save, size

from posterity.plots.style import BLUE, MUTED, ORANGE, panels
from posterity.table import ROWS


def main() -> None:
    torch.set_num_threads(1)
    results = [row.run() for row in ROWS[: size(len(ROWS), 3)]]
    exact = [r for r in results if r.row.unit != "standard errors"]
    figure, ((axis,),) = panels(width=11.0, height=0.27 * len(exact) + 1.4)
    places = range(len(exact))
    floor = 1e-17  # of the axis: an exact agreement has no logarithm
    colours = [BLUE if r.holds else ORANGE for r in exact]
    axis.barh(places, [max(r.deviation, floor) for r in exact], left=0, color=colours, height=0.6)
    axis.plot([r.row.tolerance for r in exact], places, "|", color=MUTED, markersize=10, label="tolerance")
    axis.set_xscale("log")
    axis.set(xlim=(floor, 1), xlabel="largest deviation from the independent implementation")
    axis.set_yticks(places, [f"{r.row.name}  ({r.row.posterior})" for r in exact], fontsize=10)
    axis.invert_yaxis()
    axis.margins(y=0.01)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, loc="lower right")
    holding, sampled = sum(r.holds for r in results), len(results) - len(exact)
    headline(
        figure,
        f"Table 1, run live: {holding} of {len(results)} rows within their tolerance\n"
        f"(the {sampled} that are sampled are counted in standard errors, and not drawn)",
    )
    save(figure, "table_one")


if __name__ == "__main__":
    main()
