"""What if an example had not been there? The estimate against training again without it."""

from __future__ import annotations

import torch
from common import digits, save, size
from generalisation import optimum
from torch import Tensor, nn

import posterity as po
from posterity.plots.style import BLUE, MUTED, ORANGE, panels

PRECISION = 1.0


def probabilities(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x).softmax(-1)


def main() -> None:
    torch.set_num_threads(1)
    x, y = digits()
    x = x.double()
    train = (x[: size(300, 30)], y[: size(300, 30)])
    networks = {
        "Softmax regression": nn.Linear(64, 10),
        "A hidden layer of ten": nn.Sequential(nn.Linear(64, 10), nn.Tanh(), nn.Linear(10, 10)),
    }
    figure, (axes,) = panels(1, 2, width=5.2, height=4.4)
    for axis, (name, model) in zip(axes, networks.items(), strict=True):
        torch.manual_seed(0)
        model = model.double()
        optimum(model, train, PRECISION)
        posterior = po.laplace(model, train, structure="full", prior_precision=PRECISION)
        m = po.memory_map(model, posterior, train)
        ranked = m.top(len(m), by="sensitivity")["id"].tolist()
        chosen = ranked[:: max(1, len(ranked) // size(40, 2))]  # from the most to the least sensitive
        start = {key: value.clone() for key, value in model.state_dict().items()}
        found: dict[str, list[float]] = {"first order": [], "its curvature taken out": []}
        truth = []
        for i in chosen:
            keep = torch.arange(len(train[1])) != i
            model.load_state_dict(start)
            before = probabilities(model, train[0][[i]])[0, train[1][i]]
            for label, deflate in zip(found, (False, True), strict=True):
                outcome = m.what_if(remove=[i], deflate=deflate).on((train[0][[i]], train[1][[i]]))
                found[label].append((outcome.after - outcome.before)[0, train[1][i]].item())
            optimum(model, (train[0][keep], train[1][keep]), PRECISION)
            truth.append((probabilities(model, train[0][[i]])[0, train[1][i]] - before).item())
        model.load_state_dict(start)
        for (label, values), colour in zip(found.items(), (ORANGE, BLUE), strict=True):
            axis.plot(truth, values, "o", color=colour, label=label, alpha=0.8, markersize=5)
        low = min(truth)
        axis.plot([low, 0], [low, 0], color=MUTED, linestyle="--", linewidth=1)
        axis.set(title=name, xlabel="change of p(label) after training again without the example")
    axes[0].set_ylabel("estimated change")
    axes[0].legend(frameon=False)
    figure.suptitle("What if this example had not been there? Estimates without training, on the dashed line if exact")
    save(figure, "what_if")


if __name__ == "__main__":
    main()
