"""Predicting generalisation: leave-one-out from the training data alone chooses the prior that held-out data would."""

from __future__ import annotations

import torch
from common import digits, headline, record, save, size
from torch import Tensor, nn

import posterity as po
from posterity.memory import leave_one_out
from posterity.plots.style import BLUE, GREEN, MUTED, panels

Data = tuple[Tensor, Tensor]


def optimum(model: nn.Module, data: Data, precision: float) -> None:
    """Train to the optimum of the regularised loss, which leave-one-out assumes."""
    descent = torch.optim.LBFGS(
        model.parameters(), max_iter=size(4000, 20), tolerance_grad=1e-6, tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def objective() -> Tensor:
        descent.zero_grad()
        loss = nn.functional.cross_entropy(model(data[0]), data[1], reduction="sum")
        loss = loss + 0.5 * precision * sum(p.square().sum() for p in model.parameters())
        loss.backward()
        return loss

    descent.step(objective)


def nll(model: nn.Module, data: Data) -> float:
    with torch.no_grad():
        return nn.functional.cross_entropy(model(data[0]), data[1]).item()


def main() -> None:
    torch.set_num_threads(1)
    x, y = digits()
    x, y = x.double(), y.clone()
    count = size(300, 60)
    wrong = torch.arange(len(y)) % 10 == 0  # a tenth of all labels, held-out ones as well
    y[wrong] = (y[wrong] + 3) % 10
    train, test = (x[:count], y[:count]), (x[900:], y[900:])
    precisions = torch.logspace(-2, 2, size(13, 3), dtype=torch.float64).tolist()
    figure, (axes,) = panels(1, 2, width=5.4, height=4.0, sharey=True)
    networks = {
        "Softmax regression": lambda: nn.Linear(64, 10),
        "A hidden layer of ten": lambda: nn.Sequential(nn.Linear(64, 10), nn.Tanh(), nn.Linear(10, 10)),
    }
    chosen: dict[str, dict[str, float]] = {}
    for axis, (name, network) in zip(axes, networks.items(), strict=True):
        curves: dict[str, list[float]] = {"training": [], "leave-one-out, estimated": [], "held out": []}
        for precision in precisions:
            torch.manual_seed(0)
            model = network().double()
            optimum(model, train, precision)
            posterior = po.laplace(model, train, structure="full", prior_precision=precision)
            estimate = leave_one_out(model, posterior, train).nll.mean().item()
            for values, value in zip(curves.values(), (nll(model, train), estimate, nll(model, test)), strict=True):
                values.append(value)
        for (label, values), colour in zip(curves.items(), (MUTED, BLUE, GREEN), strict=True):
            axis.plot(precisions, values, "o-", color=colour, label=label, markersize=4)
        held = curves["held out"]
        chosen[name] = {by: held[values.index(min(values))] for by, values in curves.items()}
        for label, colour in (("training", MUTED), ("leave-one-out, estimated", BLUE)):
            place = curves[label].index(min(curves[label]))
            axis.plot(
                precisions[place], held[place], "D", color=colour, markersize=9, zorder=3, markeredgecolor="white"
            )
        axis.set_xscale("log")
        axis.set(title=name, xlabel="precision of the prior")
        axis.grid(True, color="#E3E3E3")
    axes[0].set(ylabel="mean NLL (nats)", ylim=(0, 2.6))
    axes[0].legend(frameon=False)
    worst = max(found["leave-one-out, estimated"] - found["held out"] for found in chosen.values())
    headline(
        figure,
        f"Leave-one-out, from training data alone, chooses a prior within {worst:.2f} nats of the best (diamonds)",
    )
    record("generalisation", held_out_nll_of_the_choice=chosen)
    save(figure, "generalisation")


if __name__ == "__main__":
    main()
