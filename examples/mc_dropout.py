"""MC dropout on MNIST: averaging masks against averaging weights, with all the data and with a quarter.

The figures are those of `benchmarks/mnist_dropout.py` (LeNet, three seeds), read from its table: training takes a GPU.
"""

from __future__ import annotations

from pathlib import Path

from common import record, save

from posterity.plots.style import BLUE, GREEN, MUTED, ORANGE, panels

TABLE = Path(__file__).parent.parent / "docs" / "benchmarks" / "mnist_dropout.md"
METHODS = {
    "no dropout": ("no dropout", MUTED),
    "dropout at the end": ("dropout before the last layer", GREEN),
    "dropout everywhere, weight averaging": ("dropout everywhere,\nweights averaged", ORANGE),
    "dropout everywhere, MC dropout": ("dropout everywhere,\nmasks averaged (MC)", BLUE),
}
SHARES = {"all": "all of MNIST", "a quarter": "a quarter of it"}
COLUMNS = {"test error (%)": 3, "test NLL (nats)": 4}

Cell = tuple[float, float]


def figures() -> dict[tuple[str, str], list[Cell]]:
    """(data, method) -> error and NLL, each with its standard deviation over the seeds."""
    found = {}
    for text in TABLE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in text.strip("|").split("|")]
        if len(cells) > 4 and cells[1] in METHODS:
            found[cells[0], cells[1]] = [_cell(cells[k]) for k in COLUMNS.values()]
    return found


def _cell(text: str) -> Cell:
    mean, _, spread = text.partition("±")
    return float(mean), float(spread)


def main() -> None:
    found = figures()
    figure, (axes,) = panels(1, 2, width=6.0, height=4.2)
    for k, (axis, name) in enumerate(zip(axes, COLUMNS, strict=True)):
        for j, (method, (label, colour)) in enumerate(METHODS.items()):
            places = [i + 0.2 * (j - 1.5) for i in range(len(SHARES))]
            means, spreads = zip(*(found[share, method][k] for share in SHARES), strict=True)
            bars = axis.bar(places, means, 0.18, yerr=spreads, color=colour, label=label, error_kw={"elinewidth": 1})
            axis.bar_label(bars, fmt="%.2f" if k == 0 else "%.3f", fontsize=9, padding=3)
        axis.set_xticks(range(len(SHARES)), list(SHARES.values()))
        axis.set(ylabel=name)
        axis.margins(y=0.12)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, loc="upper left", fontsize=9, ncols=2)
    axes[0].margins(y=0.45)
    figure.suptitle(
        "LeNet with dropout everywhere: averaging masks beats averaging weights (three seeds, ± one deviation)"
    )
    record("mc_dropout", error_percent={f"{share}: {method}": cells[0][0] for (share, method), cells in found.items()})
    save(figure, "mc_dropout")


if __name__ == "__main__":
    main()
