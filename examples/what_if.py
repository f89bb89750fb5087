"""What if an example had not been there? The estimate against training again without it."""

from __future__ import annotations

from typing import Any

import torch
from common import digits, headline, record, save, size
from generalisation import optimum
from torch import Tensor, nn

import posterity as po
from posterity.plots.style import BLUE, GREEN, MUTED, ORANGE, panels

PRECISION = 1.0
WAYS: dict[str, dict[str, Any]] = {
    "first order": {"deflate": False, "passes": 0},
    "its curvature taken out": {"deflate": True, "passes": 0},
    "with passes over the data (the default)": {},
}


def probabilities(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x).softmax(-1)


def main() -> None:
    torch.set_num_threads(1)
    x, y = digits()
    x = x.double()
    train = (x[: size(300, 30)], y[: size(300, 30)])
    torch.manual_seed(0)
    networks = {
        "Softmax regression": nn.Linear(64, 10),
        "A hidden layer of ten": nn.Sequential(nn.Linear(64, 10), nn.Tanh(), nn.Linear(10, 10)),
    }
    figure, (axes,) = panels(1, 2, width=5.2, height=4.4)
    numbers = {}
    for axis, (name, model) in zip(axes, networks.items(), strict=True):
        model = model.double()
        optimum(model, train, PRECISION)
        posterior = po.laplace(model, train, structure="full", prior_precision=PRECISION)
        m = po.memory_map(model, posterior, train)
        ranked = m.top(len(m), by="sensitivity")["id"].tolist()
        chosen = ranked[:: max(1, len(ranked) // size(40, 2))]  # from the most to the least sensitive
        start = {key: value.clone() for key, value in model.state_dict().items()}
        found: dict[str, list[float]] = {name: [] for name in WAYS}
        truth = []
        for i in chosen:
            keep = torch.arange(len(train[1])) != i
            model.load_state_dict(start)
            before = probabilities(model, train[0][[i]])[0, train[1][i]]
            for label, how in WAYS.items():
                outcome = m.what_if(remove=[i], **how).on((train[0][[i]], train[1][[i]]))
                found[label].append((outcome.after - outcome.before)[0, train[1][i]].item())
            optimum(model, (train[0][keep], train[1][keep]), PRECISION)
            truth.append((probabilities(model, train[0][[i]])[0, train[1][i]] - before).item())
        model.load_state_dict(start)
        for (label, values), colour, mark in zip(found.items(), (ORANGE, BLUE, GREEN), "oo+", strict=True):
            axis.plot(truth, values, mark, color=colour, label=label, alpha=0.8, markersize=8 if mark == "+" else 5)
        numbers[name] = {"retrained": truth, **found}
        low = min(truth)
        axis.plot([low, 0], [low, 0], color=MUTED, linestyle="--", linewidth=1)
        axis.set(title=name, xlabel="change of p(label), trained again")
    axes[0].set_ylabel("estimated change")
    axes[0].legend(frameon=False)
    headline(
        figure,
        "The effect of leaving out one example: one equation is close to retraining (dashed), and passes over the "
        "data remove most of the remaining error",
    )
    record("what_if", **numbers)
    save(figure, "what_if")


if __name__ == "__main__":
    main()
