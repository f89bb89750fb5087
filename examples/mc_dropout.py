"""MC dropout on MNIST: test errors over epochs, averaging masks against averaging weights, on all data and a quarter.

The figures are those of `benchmarks/mnist_dropout_curves.py` (LeNet), read from its table: training takes a GPU.
"""

from __future__ import annotations

from pathlib import Path

from common import headline, record, save

from posterity.plots.style import BLUE, GREEN, MUTED, ORANGE, panels

TABLE = Path(__file__).parent.parent / "docs" / "benchmarks" / "mnist_dropout_curves.md"
METHODS = {
    "no dropout": ("no dropout", MUTED),
    "dropout at the end": ("dropout before the last layer", GREEN),
    "dropout everywhere, weight averaging": ("dropout everywhere, weights averaged", ORANGE),
    "dropout everywhere, MC dropout": ("dropout everywhere, masks averaged (MC)", BLUE),
}
BESIDE = {"no dropout": "bottom", "dropout at the end": "top"}  # their last errors are close
SHARES = {"all": "all of MNIST", "a quarter": "a quarter of it"}


def curves() -> dict[tuple[str, str], list[float]]:
    """(data, method) -> test error in percent after each epoch."""
    found = {}
    for text in TABLE.read_text(encoding="utf-8").splitlines():
        share, method, *errors = [cell.strip() for cell in text.strip("|").split("|")] + [""]
        if method in METHODS:
            found[share, method] = [float(error) for error in errors if error]
    return found


def main() -> None:
    found = curves()
    figure, (axes,) = panels(1, 2, width=6.0, height=5.0)
    for axis, (share, title) in zip(axes, SHARES.items(), strict=True):
        for method, (label, colour) in METHODS.items():
            errors = found[share, method]
            axis.plot(range(1, len(errors) + 1), errors, color=colour, linewidth=2.2, label=label)
            axis.annotate(
                f" {errors[-1]:.2f}", (len(errors), errors[-1]), color=colour, va=BESIDE.get(method, "center")
            )
        axis.set(title=title, xlabel="epoch", ylabel="test error (%)", yscale="log", ylim=(0.4, 8), xlim=(0.5, 22.5))
        axis.set_yticks([0.5, 1, 2, 4, 8], ["0.5", "1", "2", "4", "8"])
        axis.set_xticks(range(0, 21, 5))
        axis.minorticks_off()
        axis.grid(True, color="#E3E3E3")
    figure.legend(
        *axes[0].get_legend_handles_labels(), frameon=False, ncols=2, loc="upper center", bbox_to_anchor=(0.5, 0)
    )
    headline(figure, "LeNet with dropout everywhere: averaging masks beats averaging weights")
    record("mc_dropout", error_percent={f"{share}: {method}": errors[-1] for (share, method), errors in found.items()})
    save(figure, "mc_dropout")


if __name__ == "__main__":
    main()
